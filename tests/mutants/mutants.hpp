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
  std::string replaces;   ///< the mode in whose place it runs
  std::function<std::unique_ptr<train::Strategy>(const train::StrategyArguments&)> make;
};

/// All of them.
std::vector<Mutant> mutants();

/// Which mutant takes the place of the real strategy in this process; empty: none.
void choose_mutant(const std::string& name);

template <typename Wrong>
std::unique_ptr<train::Strategy> make_mutant(const train::StrategyArguments& arguments) {
  return std::make_unique<Wrong>(arguments);
}

/// Those of whole parameters, of split tensors, of the engine of chapter 05, of groups of ranks,
/// of ZeRO++, and of a tensor axis.
std::vector<Mutant> mutants_of_owners();
std::vector<Mutant> mutants_of_shards();
std::vector<Mutant> mutants_of_the_engine();
std::vector<Mutant> mutants_of_the_mesh();
std::vector<Mutant> mutants_of_zero_plus_plus();
std::vector<Mutant> mutants_of_splits();

/// The average that forgot to divide.
template <typename Real>
struct SumForMean final : Real {
  using Real::Real;
  void finish_backward() override {
    Real::finish_backward();
    for (std::size_t i = 0; i < this->list().size(); ++i) {
      const at::Tensor mine = this->piece(i).tensor;
      if (!mine.defined() || !mine.grad().defined()) continue;
      mine.mutable_grad().mul_(this->communicator().size());
    }
  }
};

/// Every rank updates what it owns and tells nobody.
template <typename Real>
struct StaleParameters final : Real {
  using Real::Real;
  void sync_parameters() override {}
};

}  // namespace zero::testing
