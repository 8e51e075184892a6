#include "zero/distributed/rank_order.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "zero/error.hpp"

namespace zero::dist {
namespace {

// Small enough to stay in the first-level cache while one input after the other is added to it.
constexpr std::int64_t kBlock = 2048;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

// The type in which sums are kept.
template <typename T>
using Sum = std::conditional_t<kIsHalf<T>, float, T>;

template <typename T>
void add_blocks(T* output, const std::vector<const T*>& inputs, std::int64_t elements,
                int divisor) {
  alignas(64) std::array<Sum<T>, kBlock> sums;
  Sum<T>* const __restrict sum = sums.data();
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - begin);
    const T* const first = inputs.front() + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<Sum<T>>(first[i]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* const next = inputs[rank] + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] += static_cast<Sum<T>>(next[i]);
    }
    T* const out = output + begin;
    if (divisor == 1) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[i]);
    } else {
      const auto by = static_cast<Sum<T>>(divisor);
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[i] / by);
    }
  }
}

template <typename T>
void add_tensors(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int divisor) {
  if (std::is_integral_v<T> && divisor != 1) {
    throw Error("integers cannot be averaged: reduce them with ReduceOp::kSum");
  }
  std::vector<const T*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(input.const_data_ptr<T>());
  add_blocks(output.mutable_data_ptr<T>(), pointers, output.numel(), divisor);
}

}  // namespace

void sum_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                       int divisor) {
  switch (output.scalar_type()) {
    case at::kFloat:
      return add_tensors<float>(output, inputs, divisor);
    case at::kDouble:
      return add_tensors<double>(output, inputs, divisor);
    case at::kBFloat16:
      return add_tensors<c10::BFloat16>(output, inputs, divisor);
    case at::kHalf:
      return add_tensors<c10::Half>(output, inputs, divisor);
    case at::kLong:
      return add_tensors<std::int64_t>(output, inputs, divisor);
    case at::kInt:
      return add_tensors<std::int32_t>(output, inputs, divisor);
    case at::kByte:
      return add_tensors<std::uint8_t>(output, inputs, divisor);
    default:
      throw Error(
          fmt::format("tensors of {} cannot be reduced", c10::toString(output.scalar_type())));
  }
}

}  // namespace zero::dist
