#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/train/registry.hpp>

namespace zero::train {
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

}  // namespace

void Registry::add(StrategyEntry entry) { entries_.push_back(std::move(entry)); }

std::unique_ptr<Strategy> Registry::make(const std::string& mode,
                                         StrategyArguments arguments) const {
  Found found = find(mode);
  dist::Communicator& world = arguments.mesh.world();
  dist::verify_same(world, "the mode", mode);
  for (const std::string& note : found.options.notes) {
    if (world.rank() == 0) log_error("note: " + note);
  }
  arguments.options = resolved(found.entry, found.options.text, arguments.options);
  arguments.variant = found.variant;
  arguments.mode = mode;
  return found.entry.make(arguments);
}

void Registry::check(const std::string& mode) const { find(mode); }

std::vector<std::string> Registry::modes() const { return names_of(entries_, /*long_too=*/false); }

std::vector<std::string> Registry::exact_modes() const {
  std::vector<StrategyEntry> exact = entries_;
  std::erase_if(exact, [](const StrategyEntry& entry) { return entry.rounds; });
  return names_of(exact, /*long_too=*/false);
}

std::string Registry::options(const std::string& mode) const {
  const Found found = find(mode);
  return found.entry.complete ? found.entry.complete(found.options.text) : "{}";
}

Registry::Found Registry::find(const std::string& mode) const {
  const std::string name = mode.substr(0, mode.find(':'));
  const auto entry = std::ranges::find(entries_, name, &StrategyEntry::name);
  if (entry != entries_.end()) {
    const std::string variant =
        name.size() == mode.size() ? entry->variants.front() : mode.substr(name.size() + 1);
    const auto known = std::ranges::find(entry->variants, variant);
    const bool sets_options = variant.find('=') != std::string::npos;
    if (known != entry->variants.end()) {
      const auto k = static_cast<std::size_t>(known - entry->variants.begin());
      return {*entry,
              variant,
              {entry->complete ? resolved(*entry, entry->of_variants[k], "{}") : "{}", {}}};
    }
    if (entry->complete && sets_options) {
      ReadOptions read = read_mode_options(variant);
      read.text = resolved(*entry, entry->of_variants.front(), read.text);
      entry->complete(read.text);
      return {*entry, variant, std::move(read)};
    }
  }
  throw Error(base::unknown_name_message("mode", mode, names_of(entries_, /*long_too=*/true)));
}

// What the name of the mode stands for, `defaults`, and `options`.
std::string Registry::resolved(const StrategyEntry& entry, const std::string& defaults,
                               const std::string& options) const {
  const Json fixed = base::json_object(entry.fixed, entry.name);
  const Json given = base::json_object(options, entry.name);
  for (const auto& [key, value] : given.items()) {
    if (std::ranges::find(entry.keys, key) == entry.keys.end()) {
      const std::vector<std::string> others = modes_with(key);
      throw Error(fmt::format(
          "mode {}: {}{}", entry.name, base::unknown_name_message("key", key, entry.keys),
          others.empty() ? "" : fmt::format("; {} is a key of {}", key, fmt::join(others, ", "))));
    }
    if (fixed.contains(key) && fixed[key] != value) {
      throw Error(fmt::format("{} is {}, but mode {} was asked for, in which it is {}", key,
                              value.dump(), entry.name, fixed[key].dump()));
    }
  }
  return merged(merged(defaults, entry.fixed), options);
}

std::vector<std::string> Registry::modes_with(const std::string& key) const {
  std::vector<std::string> modes;
  for (const StrategyEntry& entry : entries_) {
    if (std::ranges::find(entry.keys, key) != entry.keys.end()) modes.push_back(entry.name);
  }
  return modes;
}

std::vector<std::string> Registry::keys() const {
  std::set<std::string> keys;
  for (const StrategyEntry& entry : entries_) keys.insert(entry.keys.begin(), entry.keys.end());
  return {keys.begin(), keys.end()};
}

std::string Registry::completed(const std::string& options) const {
  return entry_of(options).complete(options);
}

const StrategyEntry& Registry::entry_of(const std::string& options) const {
  const Json given = base::json_object(options, "the options");
  for (const StrategyEntry& entry : entries_) {
    bool fits = static_cast<bool>(entry.complete);
    for (const auto& item : given.items()) {
      fits = fits && std::ranges::find(entry.keys, item.key()) != entry.keys.end();
    }
    if (!fits) continue;
    Json all = base::json_object(entry.complete(options), entry.name);
    const Json fixed = base::json_object(entry.fixed, entry.name);
    for (const auto& item : fixed.items()) {
      fits = fits && all[item.key()] == item.value();
    }
    if (fits) return entry;
  }
  std::string text;
  for (const auto& [key, value] : given.items()) {
    text +=
        fmt::format("\n{} = {}: a key of {}", key, value.dump(), fmt::join(modes_with(key), ", "));
  }
  throw Error("no mode has all of these options:" + text);
}

}  // namespace zero::train
