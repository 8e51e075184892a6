#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Wraps any of LibTorch's own optimizers as an Optimizer. narrow() shortens its parameter groups;
/// sharding an optimizer by whole parameters takes no more.
///
/// state() knows Adam, AdamW and SGD; for others it is empty. set_learning_rate() sets the `lr` of
/// every group.
std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer);

}  // namespace zero::optim
