#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/distributed/communicator.hpp>

namespace zero::nn {

/// Target value that is left out of the loss (like `ignore_index` in PyTorch's cross-entropy).
inline constexpr std::int64_t kIgnoredTarget = -100;

/// Sum of -log softmax(row)[target] over the rows whose target is not kIgnoredTarget, divided
/// by `terms`. It is the mean if `terms` is the number of such rows, and 0 if all are ignored.
///
/// `logits` [N, classes], contiguous, any floating dtype; `targets` int64 [N]; `terms` >= 0 (0
/// divides by 1). Returns a scalar, fp32 for half types. Throws zero::Error for a target that is
/// neither a class nor kIgnoredTarget.
///
/// With a vocabulary of 49152, one matrix of logits is the largest activation of a small model, and
/// the textbook form holds three of them. This one holds one: it works in blocks of rows, saves the
/// logits and one number a row, and in backward overwrites the logits with their gradient. So the
/// logits' values may not be used after the call, and backward works once (a second one through the
/// same graph throws zero::Error).
///
/// With an `axis` of n ranks the classes are split over it: rank r has the logits of classes
/// r * C to (r + 1) * C - 1, C columns, and all ranks pass the same targets. All of them call it
/// and get the same loss. Each row's sum and target logit are gathered in forward: 2 N numbers of
/// each rank, Purpose::kActivation. Backward sends nothing.
at::Tensor consuming_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                   std::int64_t terms, dist::Communicator* axis = nullptr);

/// Rows of a block of consuming_cross_entropy(). Its scratch is 4 MiB of fp32 on the CPU and 128
/// MiB elsewhere, where each operation is a launch.
std::int64_t cross_entropy_rows(at::Device device, std::int64_t classes);

}  // namespace zero::nn
