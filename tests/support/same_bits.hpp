#pragma once

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

namespace zero::testing {

/// Whether two lists of tensors are the same to the last bit; undefined ones count.
inline ::testing::AssertionResult same_bits(const std::vector<at::Tensor>& a,
                                            const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "different numbers of tensors";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) {
      return ::testing::AssertionFailure() << "only one has tensor " << i;
    }
    if (a[i].defined() && !at::equal(a[i], b[i])) {
      return ::testing::AssertionFailure() << "tensor " << i << " differs by at most "
                                           << (a[i] - b[i]).abs().max().item<double>();
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace zero::testing
