#pragma once

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Gives every optimizer that `optimizer` makes an exponential moving average of the weights
/// (Polyak and Juditsky 1992), for evaluation: train::with_averaged_weights().
///
/// The average begins as a parameter's value before its first update. After every step() each
/// average moves by (1 - decay) times its difference to the parameter, in this order of operations:
/// difference, product, sum. So it has the same bits however ranks share the elements. It averages
/// the master weight if the parameter has one, and is float32 for a 2-byte parameter. Values that a
/// program writes into a parameter count from the next step on; the average itself stays.
///
/// A rank averages what it updates and sends nothing: the average is one more state, "average", of
/// the optimizer. So it takes the bytes of one moment, checkpoints have it, and it is loaded at any
/// world size and stage. The kind in settings() ends in " with average".
///
/// @param optimizer makes what updates the parameters.
/// @param decay at least 0 and below 1, such as 0.999; all ranks give the same.
/// @throws zero::Error for another decay, and if with_master_weights() is around it and not inside.
OptimizerFactory with_weight_average(OptimizerFactory optimizer, double decay);

/// Whether it is made by with_weight_average().
bool has_weight_average(const Optimizer& optimizer);
/// The average of a parameter, flat, sharing memory with the optimizer's own; undefined before the
/// first update. @throws zero::Error if with_weight_average() did not make the optimizer.
at::Tensor weight_average(const Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace zero::optim
