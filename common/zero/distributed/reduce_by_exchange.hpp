#pragma once

// Private to common/zero/distributed: reductions in rank order for devices, such as GPUs, where
// messages to all ranks start together and sums are tensor operations.

#include <torch/types.h>

#include <functional>
#include <vector>

namespace zero::dist {

/// Sends outgoing[p] to rank p and receives incoming[p] from it, for all ranks at once; tensors of
/// 0 elements are not sent. The incoming tensors may be read when it returns: on a GPU, by later
/// work of the current stream.
using Exchange =
    std::function<void(std::vector<at::Tensor> incoming, std::vector<at::Tensor> outgoing)>;

/// A reduction by exchanges between all ranks: pieces[p] (flat, on any device, the same length on
/// all ranks) goes to rank p, which adds up in rank order, divides by `divisor` and writes
/// `output`, which may be pieces[rank]. With `gather` the results return into `pieces`. All ranks
/// make the same number of exchanges. Blocks as `exchange` does. Scratch: at most kScratchBytes.
void reduce_by_exchange(const std::vector<at::Tensor>& pieces, const at::Tensor& output, int rank,
                        int divisor, bool gather, const Exchange& exchange);

/// sum_in_rank_order() of rank_order.hpp, bit for bit, for tensors on any device.
void sum_by_operations(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                       int divisor);

/// tensor /= divisor, with the rounding of a division on every device.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace zero::dist
