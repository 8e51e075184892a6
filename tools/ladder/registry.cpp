#include "registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/distributed/agreement.hpp>

namespace zero::tools {
namespace {

using Json = nlohmann::json;

// Each default by its short name and, if `long_too`, by its long one; then the other variants.
std::vector<std::string> names_of(const std::vector<StrategyEntry>& entries, bool long_too) {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : entries) {
    names.push_back(entry.name);
    for (std::size_t v = long_too ? 0 : 1; v < entry.variants.size(); ++v) {
      names.push_back(entry.name + ":" + entry.variants[v]);
    }
  }
  return names;
}

// Adds "lookahead=2" to `settings`: numbers and true keep their types, anything else is a string.
void add_setting(Json& settings, const std::string& text) {
  const std::size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0) {
    throw Error(fmt::format(
        "'{}' is no setting of a mode; write key=value, and no colon in the value", text));
  }
  const std::string key = text.substr(0, sign), value = text.substr(sign + 1);
  if (settings.contains(key)) {
    throw Error(fmt::format("'{}' is the second value of {}; give one", value, key));
  }
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  settings[key] = json.is_primitive() && !json.is_discarded() ? json : Json(value);
}

// The options after the name of a mode: keys and their values, joined by colons.
Json settings_of(const std::string& text) {
  Json settings = Json::object();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ':');) add_setting(settings, part);
  return settings;
}

}  // namespace

void Registry::add_engine(std::string name, std::string chapter,
                          const std::vector<std::pair<std::string, EngineConfig>>& variants,
                          bool rounds) {
  StrategyEntry entry{std::move(name), std::move(chapter), {}, make_strategy, rounds};
  for (const auto& [variant, preset] : variants) {
    entry.variants.push_back(variant);
    entry.presets.push_back(preset);
  }
  entry.declare = declare_strategy;
  entry.is_engine = true;
  add(std::move(entry));
}

std::unique_ptr<train::Strategy> Registry::make(const std::string& mode,
                                                train::StrategyArguments arguments) const {
  const Found found = find(mode);
  dist::Communicator& world = arguments.mesh.world();
  dist::verify_same(world, "the mode", mode);
  arguments.variant = found.variant;
  arguments.mode = mode;
  return found.entry.make(arguments, found.config);
}

std::vector<std::string> Registry::modes() const { return names_of(entries_, /*long_too=*/false); }

std::vector<std::string> Registry::exact_modes() const {
  std::vector<StrategyEntry> exact = entries_;
  std::erase_if(exact, [](const StrategyEntry& entry) { return entry.rounds; });
  return names_of(exact, /*long_too=*/false);
}

Registry::Found Registry::find(const std::string& mode) const {
  const std::string name = mode.substr(0, mode.find(':'));
  const auto entry = std::ranges::find(entries_, name, &StrategyEntry::name);
  const auto unknown = [&] {
    return Error(base::unknown_name_message("mode", mode, names_of(entries_, /*long_too=*/true)));
  };
  if (entry == entries_.end()) throw unknown();
  const std::string variant =
      name.size() == mode.size() ? entry->variants.front() : mode.substr(name.size() + 1);
  const auto known = std::ranges::find(entry->variants, variant);
  Found found{*entry, variant};
  if (known != entry->variants.end()) {
    const auto k = static_cast<std::size_t>(known - entry->variants.begin());
    if (!entry->presets.empty()) found.config = entry->presets[k];
    return found;
  }
  if (entry->presets.empty() || variant.find('=') == std::string::npos) throw unknown();
  found.config = entry->presets.front();
  base::Keys keys("mode " + name);
  entry->declare(keys, found.config);
  keys.read(settings_of(variant));
  if (const std::string is = mode_of(found.config); entry->is_engine && is != name) {
    throw Error(fmt::format("mode {} was asked for, but with these settings it is {}", name, is));
  }
  return found;
}

}  // namespace zero::tools
