// Wrong implementations of the engine of chapter 05.

#include <05_prefetch_overlap/overlap.hpp>

#include "mutants.hpp"

namespace zero::testing {
namespace {

template <int kStage>
class Engine : public Overlap {
 public:
  explicit Engine(const train::StrategyArguments& arguments)
      : Overlap(arguments, {.stage = kStage}) {}
};

// Updated parameters are gathered under the next forward, but nobody starts it.
class StaleParameters final : public Engine<2> {
 public:
  using Engine::Engine;
  void sync_parameters() override {}
};

// The reduction that forgot to divide.
class SumForMean final : public Engine<3> {
 public:
  using Engine::Engine;
  void finish_backward() override {
    Engine::finish_backward();
    for (std::size_t i = 0; reduces_now() && i < count(); ++i) {
      const at::Tensor mine = piece(i).tensor;
      if (mine.defined() && mine.grad().defined()) mine.mutable_grad().mul_(communicator_.size());
    }
  }
};

// Stage 3 that holds what stage 2 holds.
class NothingResharded final : public Engine<3> {
 public:
  using Engine::Engine;
  void optimizer_step() override {
    Engine::optimizer_step();
    for (std::size_t u = 0; u < list().units.size(); ++u) gather(u);
  }
};

}  // namespace

const std::vector<MutantEntry>& mutants_of_the_engine() {
  static const std::vector<MutantEntry> kEntries = {
      {{"engine_stale_parameters", "updated shards are never gathered", "Parity.AdamW"},
       "engine2",
       make_mutant<StaleParameters>},
      {{"engine_sum_for_mean", "gradients are summed, not averaged", "Parity.AdamW"},
       "engine3",
       make_mutant<SumForMean>},
      {{"engine_nothing_resharded", "parameters stay whole after the step",
        "Residency.ModelStatesAtRestAreThoseOfTheFormula"},
       "engine3",
       make_mutant<NothingResharded>},
  };
  return kEntries;
}

}  // namespace zero::testing
