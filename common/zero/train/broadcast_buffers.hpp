#pragma once

#include <torch/nn/module.h>

#include <zero/distributed/communicator.hpp>

namespace zero::train {

/// Gives the buffers of `module` (running means, masks) the values that they have on rank 0.
/// Autograd does not see it. Called by all ranks, whose buffers have the same shapes and dtypes;
/// blocks. All transfers start before the first wait.
void broadcast_buffers(const torch::nn::Module& module, dist::Communicator& communicator,
                       dist::Purpose purpose);

}  // namespace zero::train
