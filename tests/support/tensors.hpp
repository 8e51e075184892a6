#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "error_of.hpp"

/// Helpers of the tests of zero/nn.
namespace zero::testing {

/// Normally distributed values, others for every seed, that require a gradient or not.
inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, bool gradient = false,
                         at::ScalarType dtype = at::kDouble) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::TensorOptions(dtype)).requires_grad_(gradient);
}

/// int64 and double tensors of one dimension.
inline at::Tensor longs(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}
inline at::Tensor doubles(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

/// The same values as a leaf of its own.
inline at::Tensor leaf_of(const at::Tensor& x) {
  return x.detach().clone().requires_grad_(x.requires_grad());
}

/// Causal attention, softmax(q k^T / sqrt(d)) v with the future masked, head by head: q [batch,
/// length, heads, d]; k and v may have fewer heads, each of which several of q share.
inline at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t length = q.size(1), times = q.size(2) / k.size(2);
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  std::vector<at::Tensor> heads;
  for (std::int64_t h = 0; h < q.size(2); ++h) {
    const at::Tensor scores = q.select(2, h).matmul(k.select(2, h / times).transpose(1, 2)) /
                              std::sqrt(static_cast<double>(q.size(3)));
    const at::Tensor shares = scores.masked_fill(future, -1e300).softmax(-1);
    heads.push_back(shares.matmul(v.select(2, h / times)));
  }
  return at::stack(heads, 2);
}

/// Every element within `tolerance` times the largest of `b` (at least 1); same shape and dtype.
inline ::testing::AssertionResult close_to(const at::Tensor& a, const at::Tensor& b,
                                           double tolerance = 1e-10) {
  if (!a.defined() || !b.defined()) {
    return ::testing::AssertionFailure() << (a.defined() ? "second" : "first") << " is undefined";
  }
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return ::testing::AssertionFailure()
           << a.sizes() << " " << a.scalar_type() << " and " << b.sizes() << " " << b.scalar_type();
  }
  if (a.numel() == 0) return ::testing::AssertionSuccess();
  const double scale = std::max(1.0, b.detach().abs().max().item<double>());
  const double difference = (a.detach() - b.detach()).abs().max().item<double>();
  if (difference <= tolerance * scale) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "differ by up to " << difference << " of " << scale;
}

/// Same shape, dtype and bits (at::equal); two undefined tensors are the same.
inline ::testing::AssertionResult identical(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) {
    return ::testing::AssertionFailure() << (a.defined() ? "second" : "first") << " is undefined";
  }
  if (!a.defined() || (a.scalar_type() == b.scalar_type() && at::equal(a, b))) {
    return ::testing::AssertionSuccess();
  }
  return close_to(a, b, 0) << " (not the same bits)";
}

}  // namespace zero::testing
