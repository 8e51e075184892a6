#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/engine_config.hpp>
#include <zero/train/strategy.hpp>

namespace zero::tools {

/// A strategy that a chapter offers.
struct StrategyEntry {
  std::string name;     ///< "zero1"
  std::string chapter;  ///< "01_zero1"
  /// The default first, by its own name: {"owner", "naive"}. "zero1" is "zero1:owner".
  std::vector<std::string> variants;
  /// `config`: of the variant.
  std::function<std::unique_ptr<train::Strategy>(const train::StrategyArguments& arguments,
                                                 const EngineConfig& config)>
      make;
  /// Whether it sends rounded values. Its weights are then close to those of chapter 00, not equal.
  bool rounds = false;

  // For a strategy with options. A variant may then set some: "lookahead=2". modes() does not list
  // such variants.

  std::vector<EngineConfig> presets = {};  ///< what each variant stands for
  /// The options that may be set.
  std::function<void(base::Keys& keys, EngineConfig& config)> declare = {};
  /// Whether the name stands for the stage, groups and parts: it is mode_of() its options.
  bool is_engine = false;
};

/// Strategies by name.
class Registry {
 public:
  void add(StrategyEntry entry) { entries_.push_back(std::move(entry)); }
  /// A class whose options are all in StrategyArguments.
  template <typename Chapter>
  void add(std::string name, std::string chapter, std::vector<std::string> variants) {
    add({std::move(name), std::move(chapter), std::move(variants),
         [](const train::StrategyArguments& a, const EngineConfig&) {
           return std::make_unique<Chapter>(a);
         }});
  }
  /// What an engine makes of each variant's options (zero::make_strategy()). The name, which is
  /// mode_of() them, stands for the stage, groups and parts of ZeRO++: other ones cannot be set.
  void add_engine(std::string name, std::string chapter,
                  const std::vector<std::pair<std::string, EngineConfig>>& variants,
                  bool rounds = false);

  /// Makes the strategy that `mode` ("zero1", "zero1:naive", "engine3:lookahead=2") names;
  /// overrides arguments.variant. Throws zero::Error with the known names for an unknown one, and
  /// for options that the mode does not have, with those that it has.
  std::unique_ptr<train::Strategy> make(const std::string& mode,
                                        train::StrategyArguments arguments) const;

  /// Throws zero::Error if make() would not know `mode`.
  void check(const std::string& mode) const { find(mode); }

  /// The options of `mode`; defaults for a mode without options. Throws as make() does.
  EngineConfig config(const std::string& mode) const { return find(mode).config; }

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
    EngineConfig config = {};
  };
  Found find(const std::string& mode) const;

  std::vector<StrategyEntry> entries_;
};

/// Adds the strategies of all chapters of this program (modes/all_chapters.cpp).
void register_all_chapters(Registry& registry);

}  // namespace zero::tools
