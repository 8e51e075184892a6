#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/train/strategy.hpp>

namespace zero::train {

/// A strategy that a chapter offers.
struct StrategyEntry {
  std::string name;     ///< "zero1"
  std::string chapter;  ///< "01_zero1"
  /// The default first, by its own name: {"owner", "naive"}. "zero1" is "zero1:owner".
  std::vector<std::string> variants;
  std::function<std::unique_ptr<Strategy>(const StrategyArguments&)> make;
  /// For a strategy with options of its own: reads a variant that sets some ("lookahead=2"), and
  /// throws zero::Error if it is invalid. modes() does not list such variants.
  std::function<void(const std::string& variant)> check_options = {};
  /// Whether it sends rounded values. Its weights are then close to those of chapter 00, not equal.
  bool rounds = false;
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

  /// Makes the strategy that `mode` ("zero1", "zero1:naive") names; overrides arguments.variant.
  /// Throws zero::Error with the known names for an unknown one.
  std::unique_ptr<Strategy> make(const std::string& mode, StrategyArguments arguments) const;

  /// Throws zero::Error if make() would not know `mode`.
  void check(const std::string& mode) const;

  /// StrategyEntry::rounds of `mode`. Throws as check() does.
  bool rounds(const std::string& mode) const { return find(mode).first.rounds; }

  const std::vector<StrategyEntry>& entries() const { return entries_; }
  /// Every mode: each strategy's default by its short name, then its other variants.
  std::vector<std::string> modes() const;
  /// Those that have the weights of chapter 00, to the last bit.
  std::vector<std::string> exact_modes() const;

 private:
  std::pair<const StrategyEntry&, std::string> find(const std::string& mode) const;

  std::vector<StrategyEntry> entries_;
};

/// Adds the strategies of all chapters of this build. Written by CMake from the list of chapters.
void register_all_chapters(Registry& registry);

}  // namespace zero::train
