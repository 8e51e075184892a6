#pragma once

#include <zero/train/strategy.hpp>

/// The exercise: gradient clipping where every rank has only its own gradients.
///
/// Called by all ranks after finish_backward() and before optimizer_step(). Gives the L2 norm of
/// the whole averaged gradient of the model, as it is before clipping, the same on every rank.
/// Where that is more than `max_norm`, multiplies every gradient that this rank owns by max_norm /
/// (norm + 1e-6).
///
/// The bits must be those of plain DDP with clipping: the squares of each parameter are summed in
/// double (zero::optim::squared_norm), the parameters' sums are added in parameter order and the
/// root of that (zero::optim::norm_from_squares) is rounded once, to a float, and the factor is
/// computed once from this float (zero::optim::clip_coefficient).
float clip_grad_norm(zero::train::Strategy& strategy, double max_norm);
