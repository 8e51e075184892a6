#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include <zero/train/strategy.hpp>

namespace zero::io {

/// Who gets the whole model.
enum class WholeOn : std::uint8_t { kFirstRank, kAllRanks };

/// Brings the whole model to rank 0 or to all ranks, one parameter at a time, and shows them there:
/// parameter `index` of train::StageOfModel::whole(), which is `whole` until `visit` returns. Each
/// rank holds at most what it owns, one unit, and one parameter if the model is split over a tensor
/// or a pipeline axis. Called by all ranks of all axes, between steps; blocks. `visit` must not
/// throw: other ranks would wait. The traffic counts as Purpose::kParameter.
void whole_values(train::Strategy& strategy, WholeOn ranks,
                  const std::function<void(std::size_t index, const at::Tensor& whole)>& visit);

}  // namespace zero::io
