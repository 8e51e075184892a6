#include <ATen/ops/aminmax.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <zero/distributed/rank_order.hpp>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <zero/base/error.hpp>

namespace zero::dist {
namespace {

// Elements that are added together in registers.
constexpr int kTogether = 16;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

// The type in which sums are kept.
template <typename T>
using Sum = std::conditional_t<kIsHalf<T>, float, T>;

// The divisor of sums. For a power of two, multiplying by the inverse gives the same bits as
// division and takes a fraction of the time.
template <typename T>
class Divisor {
 public:
  explicit Divisor(int divisor)
      : by_(static_cast<T>(divisor)),
        inverse_(static_cast<T>(static_cast<T>(1) / by_)),
        exact_(std::has_single_bit(static_cast<unsigned>(divisor))) {
    // The inverse of an integer would be 0; integers are only divided by 1 (see add_tensors).
    TORCH_INTERNAL_ASSERT(std::is_floating_point_v<T> || divisor == 1);
  }
  template <std::size_t N>
  void divide(std::array<T, N>& sums) const {
    if (exact_) {
      for (T& sum : sums) sum = static_cast<T>(sum * inverse_);
    } else {
      for (T& sum : sums) sum = static_cast<T>(sum / by_);
    }
  }

 private:
  T by_;
  T inverse_;
  bool exact_;
};

// Whether stores may bypass the cache. A sum that overwrites none of its inputs is read much later,
// and a store into the cache would first load the line that it overwrites.
template <typename T>
bool around_cache(const T* output, const std::vector<const T*>& inputs) {
#ifdef __SSE2__
  constexpr std::uintptr_t kAligned = 16;
  return std::is_same_v<T, float> && reinterpret_cast<std::uintptr_t>(output) % kAligned == 0 &&
         std::find(inputs.begin(), inputs.end(), output) == inputs.end();
#else
  return false;
#endif
}

template <std::size_t N, typename T>
void store(T* to, const std::array<Sum<T>, N>& sums, [[maybe_unused]] bool around) {
#ifdef __SSE2__
  if constexpr (std::is_same_v<T, float> && N == kTogether) {
    if (around) {
      for (std::size_t i = 0; i < N; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(sums.data() + i));
      return;
    }
  }
#endif
  for (std::size_t i = 0; i < N; ++i) to[i] = static_cast<T>(sums[i]);
}

// Tells the cache what is read a few hundred cycles later: a core alone looks ahead only to the end
// of a page.
void fetch_ahead(const void* from) {
  constexpr std::ptrdiff_t kAhead = 1024;
  __builtin_prefetch(static_cast<const std::byte*>(from) + kAhead);
}

// Tracks whether values were finite. x - x is 0 for every number and NaN for infinities and NaN,
// and a sum keeps a NaN.
template <typename T>
using Doubt = std::array<Sum<T>, kTogether>;

// Checks values as T stores them: rounding to a half type may overflow.
template <typename T, std::size_t N>
void note(Doubt<T>& doubt, const std::array<Sum<T>, N>& values) {
  if constexpr (std::is_floating_point_v<Sum<T>>) {
    for (std::size_t i = 0; i < N; ++i) {
      const auto stored = static_cast<Sum<T>>(static_cast<T>(values[i]));
      doubt[i] += stored - stored;
    }
  }
}

template <std::size_t N, typename T>
std::array<Sum<T>, N> load(const T* from) {
  std::array<Sum<T>, N> values;
  for (std::size_t i = 0; i < N; ++i) values[i] = static_cast<Sum<T>>(from[i]);
  return values;
}

template <std::size_t N, typename T>
void add_some(T* output, const std::vector<const T*>& inputs, std::int64_t begin,
              const Divisor<Sum<T>>& divisor, bool around, Doubt<T>& output_doubt,
              Doubt<T>& overwritten_doubt) {
  for (const T* input : inputs) fetch_ahead(input + begin);
  std::array<Sum<T>, N> sums = load<N>(inputs.front() + begin);
  if (inputs.front() == output) note<T>(overwritten_doubt, sums);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const std::array<Sum<T>, N> next = load<N>(inputs[rank] + begin);
    if (inputs[rank] == output) note<T>(overwritten_doubt, next);
    for (std::size_t i = 0; i < N; ++i) sums[i] = static_cast<Sum<T>>(sums[i] + next[i]);
  }
  divisor.divide(sums);
  note<T>(output_doubt, sums);
  store<N>(output + begin, sums, around);
}

template <typename T>
SumCheck add_all(T* output, const std::vector<const T*>& inputs, std::int64_t elements,
                 int divisor) {
  const Divisor<Sum<T>> by(divisor);
  const bool around = around_cache(output, inputs);
  Doubt<T> of_output{}, of_overwritten{};
  std::int64_t begin = 0;
  for (; begin + kTogether <= elements; begin += kTogether) {
    add_some<kTogether>(output, inputs, begin, by, around, of_output, of_overwritten);
  }
  for (; begin < elements; ++begin) {
    add_some<1>(output, inputs, begin, by, around, of_output, of_overwritten);
  }
#ifdef __SSE2__
  if (around) _mm_sfence();  // before a peer is told that the sum is ready
#endif
  return {of_output == Doubt<T>{}, of_overwritten == Doubt<T>{}};
}

template <typename T>
SumCheck add_tensors(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int divisor) {
  if (std::is_integral_v<T> && divisor != 1) {
    throw Error("integers cannot be averaged: reduce them with ReduceOp::kSum");
  }
  std::vector<const T*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(input.const_data_ptr<T>());
  return add_all(output.mutable_data_ptr<T>(), pointers, output.numel(), divisor);
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, most] = at::aminmax(tensor.flatten());
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

void copy_around_cache(void* to, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
#ifdef __SSE2__
  constexpr std::size_t kLine = 64, kLarge = 256 << 10;  // half of a small second-level cache
  if (bytes >= kLarge) {
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
    std::memcpy(target, source, head);
    std::size_t done = head;
    for (; done + kLine <= bytes; done += kLine) {
      fetch_ahead(source + done);
      for (std::size_t i = done; i < done + kLine; i += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
      }
    }
    _mm_sfence();
    target += done, source += done, bytes -= done;
  }
#endif
  std::memcpy(target, source, bytes);
}

void copy_around_cache(at::Tensor to, const at::Tensor& from) {
  if (!to.is_cpu()) {
    to.copy_(from);
    return;
  }
  copy_around_cache(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
}

SumCheck sum_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
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
