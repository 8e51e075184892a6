#pragma once

#include <torch/types.h>

#include <cstdint>

namespace zero::nn {

/// Sum over the rows whose target is not data::kIgnoredTarget of -log softmax(row)[target], divided
/// by `terms`; with `terms` the number of such rows it is the mean. 0 where all are ignored.
///
/// `logits` [N, classes], contiguous, any floating dtype; `targets` int64 [N]; `terms` >= 0 (0
/// divides by 1). Gives a scalar, fp32 for half types. Throws zero::Error for a target that is
/// neither a class nor kIgnoredTarget.
///
/// Over a vocabulary of 49152, one matrix of logits is the largest activation of a small model, and
/// the textbook form holds three of them. This one holds one: it works in blocks of rows, saves the
/// logits and one number a row, and in backward writes the gradient of the logits over the logits.
/// So it takes the logits away: nobody else may use their values after the call, and backward works
/// once (a second one through the same graph throws zero::Error).
at::Tensor consuming_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                   std::int64_t terms);

}  // namespace zero::nn
