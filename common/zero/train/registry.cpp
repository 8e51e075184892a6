#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/train/registry.hpp>

namespace zero::train {
namespace {

// Every name that find() knows: modes(), and each default by its long name too.
std::vector<std::string> known_names(const std::vector<StrategyEntry>& entries) {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : entries) {
    names.push_back(entry.name);
    for (const std::string& variant : entry.variants) names.push_back(entry.name + ":" + variant);
  }
  return names;
}

// Each default by the short name.
std::vector<std::string> modes_of(const std::vector<StrategyEntry>& entries) {
  std::vector<std::string> modes;
  for (const StrategyEntry& entry : entries) {
    modes.push_back(entry.name);
    for (std::size_t v = 1; v < entry.variants.size(); ++v) {
      modes.push_back(entry.name + ":" + entry.variants[v]);
    }
  }
  return modes;
}

}  // namespace

void Registry::add(StrategyEntry entry) { entries_.push_back(std::move(entry)); }

std::unique_ptr<Strategy> Registry::make(const std::string& mode,
                                         StrategyArguments arguments) const {
  const auto [entry, variant] = find(mode);
  arguments.mesh.world().verify_same_on_all_ranks("the mode", mode);
  arguments.variant = variant;
  arguments.mode = mode;
  return entry.make(arguments);
}

void Registry::check(const std::string& mode) const { find(mode); }

std::vector<std::string> Registry::modes() const { return modes_of(entries_); }

std::vector<std::string> Registry::exact_modes() const {
  std::vector<StrategyEntry> exact = entries_;
  std::erase_if(exact, [](const StrategyEntry& entry) { return entry.rounds; });
  return modes_of(exact);
}

std::pair<const StrategyEntry&, std::string> Registry::find(const std::string& mode) const {
  const std::string name = mode.substr(0, mode.find(':'));
  for (const StrategyEntry& entry : entries_) {
    if (entry.name != name) continue;
    const std::string variant =
        name.size() == mode.size() ? entry.variants.front() : mode.substr(name.size() + 1);
    if (std::find(entry.variants.begin(), entry.variants.end(), variant) != entry.variants.end()) {
      return {entry, variant};
    }
    if (entry.check_options && variant.find('=') != std::string::npos) {
      entry.check_options(variant);
      return {entry, variant};
    }
  }
  throw Error(base::unknown_name_message("mode", mode, known_names(entries_)));
}

}  // namespace zero::train
