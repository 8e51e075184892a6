#pragma once

#include <functional>

#include <zero/train/strategy.hpp>

namespace zero::train {

/// Runs `function` while the model has the averages of optim::with_weight_average() for weights,
/// rounded to the parameters' types; then gives the weights back, to the last bit, also if
/// `function` throws. Parameters that were never updated keep their values. The function may
/// evaluate, export, and take a state dict; it may not train, save or write weights. Called by all
/// ranks, between steps; blocks. Needs a copy of what this rank updates. Stages 1 and 2 gather the
/// parameters twice.
/// @throws zero::Error on all ranks if the optimizer keeps no average, two stages of a pipeline
/// share a parameter, a load or an update has failed (Strategy::change_on_all_ranks()), or
/// `function` throws on any.
void with_averaged_weights(Strategy& strategy, const std::function<void()>& function);

}  // namespace zero::train
