#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include <zero/base/error.hpp>
#include <zero/engine/step_fault.hpp>
#include <zero/train/loop/step.hpp>

namespace zero {
namespace {

constexpr std::size_t kFaults = 6;

std::string fault_text(double state, const nn::ParameterList& list, const std::string& ranks,
                       std::int64_t step) {
  const auto number = static_cast<std::size_t>(-1 - state);
  const auto parameter = [&] {
    return fmt::format("parameter '{}'", list.parameters[number / kFaults].name);
  };
  switch (static_cast<StepFault>(number % kFaults)) {
    case StepFault::kLossNotFinite:
      return train::loss_not_finite(step, ranks);
    case StepFault::kLossWithoutGradient:
      return fmt::format(
          "backward() of a loss that is not one number with a gradient on {}: take what forward() "
          "returned, or what was computed from it, without detach() or NoGradGuard",
          ranks);
    case StepFault::kOldLoss:
      return fmt::format(
          "backward() of a loss whose forward() came before the last update, on {}: its gradients "
          "would be those of weights that are gone; call forward() again after the update",
          ranks);
    case StepFault::kGradientTaken:
      return fmt::format(
          "the gradient of {} was set or reset on {} between backward() and step(), by "
          "zero_grad() or otherwise, while the engine has it: give_up_step() drops the gradients "
          "of a step",
          parameter(), ranks);
    case StepFault::kTrainabilityChanged:
      return fmt::format(
          "{} was frozen or unfrozen (requires_grad_()) on {} between two micro-batches of a step: "
          "do that before the first backward() of a step or after its last one",
          parameter(), ranks);
    case StepFault::kModuleChanged:
      return fmt::format(
          "a layer or parameter of the model was added, replaced or taken out on {} since the "
          "engine was made, which does not train what it has not seen: do that before the engine "
          "is made, or after release(), and make another",
          ranks);
  }
  throw Error("an invalid fault");
}

}  // namespace

double state_of(StepFault fault, std::size_t parameter) {
  return -1.0 - static_cast<double>(static_cast<std::size_t>(fault) + kFaults * parameter);
}

bool same_state(const std::vector<double>& states, const nn::ParameterList& list,
                std::int64_t step) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < states.size(); ++r) {
    const auto shown = ranks.empty() ? r : static_cast<std::size_t>(ranks.front());
    if (states[r] < 0 && states[r] == states[shown]) ranks.push_back(static_cast<int>(r));
  }
  if (!ranks.empty()) {
    throw Error(fault_text(states[static_cast<std::size_t>(ranks.front())], list,
                           train::ranks_text(ranks), step));
  }
  return std::ranges::adjacent_find(states, std::not_equal_to<>()) == states.end();
}

}  // namespace zero
