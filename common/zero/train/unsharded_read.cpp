#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include <zero/train/unsharded_read.hpp>

namespace zero::train {
namespace {
constexpr std::string_view kNotWhole = " which is not whole on this rank now: ";
}

std::string unsharded_read(const nn::ParameterList& list, const std::vector<std::size_t>& members) {
  std::vector<std::string> names;
  for (const std::size_t i : members) names.push_back("'" + list.parameters[i].name + "'");
  const std::string& unit = list.units[list.parameters[members.front()].unit].name;
  return fmt::format(
      "a read of {}parameter{} {} of {},{}outside of its unit's forward and backward, hold "
      "train::UnshardedParameters of that unit, on all ranks, or run the model inside of "
      "forward() or evaluate() of its own engine",
      names.size() == 1 ? "" : "one of ", names.size() == 1 ? "" : "s", fmt::join(names, ", "),
      unit.empty() ? "the root" : "unit '" + unit + "'", kNotWhole);
}

std::string hidden_gradient_access(const std::string& name) {
  return fmt::format(
      "an access to the gradient of parameter '{}',{}from the first backward() of a step to its "
      "step() the engine has it. To clip, set EngineConfig::clip_norm or, after the last "
      "backward(), call strategy().clip_grad_norm(); to scale, multiply the loss; to drop the "
      "step, call give_up_step(). A backward() that the engine did not run must wait for step()",
      name, kNotWhole);
}

std::string read_without_holder(const std::string& name, const std::string& holder) {
  return fmt::format(
      "a read of parameter '{}',{}{}, which had its values, was destroyed. Before that, call "
      "release() on all ranks; else make the model anew, and load a checkpoint",
      name, kNotWhole, holder);
}

bool is_unsharded_read(const c10::Error& error) {
  return error.msg().find(kNotWhole) != std::string::npos;
}

}  // namespace zero::train
