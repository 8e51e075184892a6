#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/nn/parameters.hpp>

namespace zero {

/// What may be wrong on one rank of an engine's step.
enum class StepFault : std::uint8_t {
  kLossNotFinite,
  kLossWithoutGradient,
  kOldLoss,
  kGradientTaken,
  kTrainabilityChanged,
  kModuleChanged,
};

/// A rank's state as a number, which travels with numbers that ranks exchange anyway, so that all
/// of them throw the same. This one, of a fault, is below 0; other states are 0 or more, and must
/// be equal on all ranks. `parameter`: its index, if the fault is of one.
double state_of(StepFault fault, std::size_t parameter = 0);

/// Throws zero::Error if one of the states of all ranks, in rank order, is a fault, and names the
/// ranks that have the first such. Returns whether the states are equal. `list`, `step`: for the
/// message.
bool same_state(const std::vector<double>& states, const nn::ParameterList& list,
                std::int64_t step);

}  // namespace zero
