#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/base/keys.hpp>
#include <zero/train/mode_options.hpp>
#include <zero/train/strategy.hpp>

namespace zero::train {

/// A strategy that a chapter offers.
struct StrategyEntry {
  std::string name;     ///< "zero1"
  std::string chapter;  ///< "01_zero1"
  /// The default first, by its own name: {"owner", "naive"}. "zero1" is "zero1:owner".
  std::vector<std::string> variants;
  std::function<std::unique_ptr<Strategy>(const StrategyArguments&)> make;
  /// Whether it sends rounded values. Its weights are then close to those of chapter 00, not equal.
  bool rounds = false;

  // For a strategy with options of its own (base::Keys), as JSON objects. A variant may then set
  // some: "lookahead=2". modes() does not list such variants.

  /// What the name stands for: {"stage": 3}. It cannot be changed.
  std::string fixed = "{}";
  /// What each variant stands for. Options are given beside those of the default variant.
  std::vector<std::string> of_variants = {};
  std::vector<std::string> keys = {};
  /// Returns options with every key. Throws zero::Error for one that cannot be.
  std::function<std::string(const std::string& options)> complete = {};
};

/// Strategies by name.
class Registry {
 public:
  void add(StrategyEntry entry);
  /// A class whose options are all in StrategyArguments.
  template <typename Chapter>
  void add(std::string name, std::string chapter, std::vector<std::string> variants) {
    add({std::move(name), std::move(chapter), std::move(variants),
         [](const StrategyArguments& a) { return std::make_unique<Chapter>(a); }});
  }

  /// What `make` makes from StrategyArguments and its own `Options`. `variants`: each with what it
  /// stands for.
  template <typename Options, typename Make>
  void add(std::string name, std::string chapter, std::string fixed,
           const std::vector<std::pair<std::string, std::string>>& variants, Make make,
           bool rounds = false) {
    const auto read = [name](const std::string& options) {
      return base::options_from<Options>(options, name);
    };
    StrategyEntry entry;
    entry.name = name;
    entry.chapter = std::move(chapter);
    entry.rounds = rounds;
    entry.make = [read, make](const StrategyArguments& a) { return make(a, read(a.options)); };
    entry.complete = [read](const std::string& options) { return base::text_of(read(options)); };
    entry.fixed = std::move(fixed);
    for (const auto& [variant, options] : variants) {
      entry.variants.push_back(variant);
      entry.of_variants.push_back(options);
    }
    Options options;
    base::Keys keys(entry.name);
    declare(keys, options);
    entry.keys = keys.names();
    add(std::move(entry));
  }
  /// For a class that is made from both.
  template <typename Chapter, typename Options>
  void add(std::string name, std::string chapter, std::string fixed,
           const std::vector<std::pair<std::string, std::string>>& variants) {
    add<Options>(std::move(name), std::move(chapter), std::move(fixed), variants,
                 [](const StrategyArguments& a, const Options& o) {
                   return std::make_unique<Chapter>(a, o);
                 });
  }

  /// Makes the strategy that `mode` ("zero1", "zero1:naive") names; overrides arguments.variant.
  /// Throws zero::Error with the known names for an unknown one, and for options that the mode does
  /// not have, with those that it has.
  std::unique_ptr<Strategy> make(const std::string& mode, StrategyArguments arguments) const;

  /// Throws zero::Error if make() would not know `mode`.
  void check(const std::string& mode) const;

  /// All options of `mode`, a JSON object; empty for a mode without options. Throws as make() does.
  std::string options(const std::string& mode) const;
  /// The name of the first mode that has the keys of `options` and stands for their values. Throws
  /// zero::Error if there is none, or an option is out of range.
  std::string mode_of(const std::string& options) const { return entry_of(options).name; }
  /// `options` with every key of that mode. What they do not set is off, whatever the mode's name
  /// stands for on a command line.
  std::string completed(const std::string& options) const;
  /// Every key that a mode has.
  std::vector<std::string> keys() const;

  /// StrategyEntry::rounds of `mode`. Throws as check() does.
  bool rounds(const std::string& mode) const { return find(mode).entry.rounds; }

  const std::vector<StrategyEntry>& entries() const { return entries_; }
  /// Every mode: each strategy's default by its short name, then its other variants.
  std::vector<std::string> modes() const;
  /// Those that have the weights of chapter 00, to the last bit.
  std::vector<std::string> exact_modes() const;

 private:
  struct Found {
    const StrategyEntry& entry;
    std::string variant;
    ReadOptions options;
  };
  Found find(const std::string& mode) const;
  const StrategyEntry& entry_of(const std::string& options) const;
  std::string resolved(const StrategyEntry& entry, const std::string& defaults,
                       const std::string& options) const;
  std::vector<std::string> modes_with(const std::string& key) const;

  std::vector<StrategyEntry> entries_;
};

/// Adds the strategies of all chapters of this build. Written by CMake from the list of chapters.
void register_all_chapters(Registry& registry);

}  // namespace zero::train
