#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/train/strategy.hpp>

namespace zero::testing {

/// A wrong implementation: the real class with one seam broken.
struct Mutant {
  std::string name;
  std::string breaks;     ///< what is wrong with it
  std::string killed_by;  ///< a test that must fail because of it, without its rank suffix
};

const std::vector<Mutant>& mutants();

/// Which mutant takes the place of the real strategy in this process; empty: none.
void choose_mutant(const std::string& name);

/// A mutant, the mode in whose place it runs, and how it is made.
struct MutantEntry {
  Mutant mutant;
  std::string replaces;
  std::function<std::unique_ptr<train::Strategy>(const train::StrategyArguments&)> make;
};

template <typename Wrong>
std::unique_ptr<train::Strategy> make_mutant(const train::StrategyArguments& arguments) {
  return std::make_unique<Wrong>(arguments);
}

/// Those of whole parameters, of split tensors, and of the engine of chapter 05.
const std::vector<MutantEntry>& mutants_of_owners();
const std::vector<MutantEntry>& mutants_of_shards();
const std::vector<MutantEntry>& mutants_of_the_engine();

}  // namespace zero::testing
