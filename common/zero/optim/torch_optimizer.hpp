#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Puts one of LibTorch's own optimizers behind Optimizer: Adagrad, Adam, AdamW, RMSprop or SGD,
/// with any options. narrow() shortens its parameter groups, which is all that sharding an
/// optimizer by whole parameters takes. set_learning_rate() sets the `lr` of every group.
///
/// State that the optimizer has already is dropped. Adagrad makes its state when it is constructed,
/// for all parameters that it gets: that is V more at first.
/// @throws zero::Error for another class. LBFGS evaluates the loss several times in a step, and its
/// update is of all parameters together; the state of a program's own class is not known.
std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer);

}  // namespace zero::optim
