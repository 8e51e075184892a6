#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace zero::optim {

/// The flat tensors that belong to one parameter in one update: [parameter, gradient, state, …],
/// all of the same number of elements.
using Operands = std::vector<at::Tensor>;

/// Runs a fused kernel over many parameters so that no element is in a tensor's scalar tail.
///
/// The kernels handle 16 float32 elements at a time and the remainder one by one, and the two paths
/// sometimes round differently. An element in the tail of a whole tensor but in the body of a shard
/// would then differ between chapters. So the last (elements mod 16) of each parameter are copied
/// to a scratch padded to 16, updated there, and copied back.
///
/// `kernel` gets one list of tensors per operand: kernel({parameters, gradients, states…}). The
/// gradient (operand 1) is not written back.
void run_padded(const std::vector<Operands>& parameters,
                const std::function<void(const std::vector<std::vector<at::Tensor>>&)>& kernel);

}  // namespace zero::optim
