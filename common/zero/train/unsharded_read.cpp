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
      "train::UnshardedParameters of that unit, on all ranks",
      names.size() == 1 ? "" : "one of ", names.size() == 1 ? "" : "s", fmt::join(names, ", "),
      unit.empty() ? "the root" : "unit '" + unit + "'", kNotWhole);
}

bool is_unsharded_read(const c10::Error& error) {
  return error.msg().find(kNotWhole) != std::string::npos;
}

}  // namespace zero::train
