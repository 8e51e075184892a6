#include "zero/train/registry.hpp"

#include <algorithm>
#include <utility>

#include "zero/error.hpp"
#include "zero/report/names.hpp"

namespace zero::train {

void Registry::add(StrategyEntry entry) { entries_.push_back(std::move(entry)); }

std::unique_ptr<Strategy> Registry::make(const std::string& mode,
                                         StrategyArguments arguments) const {
  const Found found = find(mode);
  arguments.communicator.agree("the mode", mode);
  arguments.variant = found.variant;
  return found.entry.make(arguments);
}

void Registry::check(const std::string& mode) const { find(mode); }

std::vector<std::string> Registry::modes() const {
  std::vector<std::string> modes;
  for (const StrategyEntry& entry : entries_) {
    modes.push_back(entry.name);
    for (std::size_t v = 1; v < entry.variants.size(); ++v) {
      modes.push_back(entry.name + ":" + entry.variants[v]);
    }
  }
  return modes;
}

Registry::Found Registry::find(const std::string& mode) const {
  const std::string name = mode.substr(0, mode.find(':'));
  for (const StrategyEntry& entry : entries_) {
    if (entry.name != name) continue;
    const std::string variant =
        name.size() == mode.size() ? entry.variants.front() : mode.substr(name.size() + 1);
    if (std::find(entry.variants.begin(), entry.variants.end(), variant) != entry.variants.end()) {
      return {entry, variant};
    }
  }
  const std::vector<std::string> known = modes();
  throw Error(report::unknown_name_message("mode", mode, known));
}

}  // namespace zero::train
