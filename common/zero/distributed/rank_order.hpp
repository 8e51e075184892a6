#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::dist {

/// Scratch of one reduction for what arrives from peers, in bytes, at most.
inline constexpr std::int64_t kScratchBytes = 32 << 20;

/// output = (((inputs[0] + inputs[1]) + inputs[2]) + …) / divisor, element by element in exactly
/// that order. All tensors are contiguous on the CPU with the same number of elements and one
/// dtype: float32, float64, bfloat16, float16, int64, int32 or uint8. Half types are added in
/// float32, divided and rounded once. Integers are not divided (divisor must be 1; zero::Error
/// otherwise). `output` may be one of the inputs. The bits do not depend on where tensors are
/// split.
///
/// Returns checks made while adding, which save another pass over the data.
struct SumCheck {
  bool finite = true;              ///< whether all of `output` is finite
  bool overwritten_finite = true;  ///< whether the overwritten input, if any, was finite
};
SumCheck sum_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                           int divisor = 1);

/// memcpy(). Large copies go around the cache: a store into it would first load the line that it
/// overwrites. They end before it returns, for other processes too.
void copy_around_cache(void* to, const void* from, std::size_t bytes);
/// to.copy_(from) of contiguous tensors of one device, dtype and size; on the CPU as above.
void copy_around_cache(at::Tensor to, const at::Tensor& from);

/// Whether there is no infinity and no NaN in a floating-point tensor. Without scratch memory:
/// reductions are part of the memory peak.
bool all_finite(const at::Tensor& tensor);

}  // namespace zero::dist
