#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <zero/engine_config.hpp>
#include <zero/train/strategy.hpp>

namespace zero::testing {

/// A wrong implementation: the real class with one function overridden by a wrong one.
struct Mutant {
  std::string name;
  std::string breaks;  ///< what is wrong with it
  /// A test that must fail because of it, without the suffix "/N2" (number of ranks).
  std::string killed_by;
  std::string replaces;  ///< the mode in whose place it runs
  std::function<std::unique_ptr<train::Strategy>(const train::StrategyArguments&,
                                                 const EngineConfig&)>
      make;
  std::string chapter = {};  ///< if it is not that of the mode
};

/// The mutants of all functions below.
std::vector<Mutant> mutants();

/// Its own, or that of the mode which it replaces: "01_zero1". A test with this label must fail
/// because of it.
std::string chapter_of(const Mutant& mutant);

/// From now on, this process makes mutant `name` instead of the strategy that it replaces. An empty
/// name: no mutant.
void choose_mutant(const std::string& name);

template <typename Wrong>
std::unique_ptr<train::Strategy> make_mutant(const train::StrategyArguments& arguments,
                                             const EngineConfig& config) {
  if constexpr (std::is_constructible_v<Wrong, train::StrategyArguments, EngineConfig>) {
    return std::make_unique<Wrong>(arguments, config);
  } else {
    return std::make_unique<Wrong>(arguments);
  }
}

std::vector<Mutant> mutants_of_owners();          ///< chapters 01 to 03
std::vector<Mutant> mutants_of_shards();          ///< chapter 04
std::vector<Mutant> mutants_of_the_engine();      ///< chapter 05 (ShardedDataParallel)
std::vector<Mutant> mutants_of_the_mesh();        ///< chapter 06, HSDP
std::vector<Mutant> mutants_of_zero_plus_plus();  ///< chapter 07
std::vector<Mutant> mutants_of_splits();          ///< chapters 08 and 09

/// Gradients are summed over ranks and not divided by their number.
template <typename Real>
struct SumForMean final : Real {
  using Real::Real;
  void finish_backward() override {
    Real::finish_backward();
    for (std::size_t i = 0; i < this->list().size(); ++i) {
      const at::Tensor mine = this->placement(i).updated.tensor;
      if (!mine.defined() || !mine.grad().defined()) continue;
      mine.mutable_grad().mul_(this->communicator().size());
    }
  }
};

/// sync_parameters() does nothing: other ranks keep the old values.
template <typename Real>
struct StaleParameters final : Real {
  using Real::Real;
  void sync_parameters() override {}
};

}  // namespace zero::testing
