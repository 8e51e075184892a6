// Wrong implementations of the engine of chapter 05.

#include <05_prefetch_overlap/sharded_data_parallel.hpp>

#include "mutants.hpp"

namespace zero::testing {
namespace {

template <int kStage>
struct Engine : ShardedDataParallel {
  explicit Engine(const train::StrategyArguments& arguments)
      : ShardedDataParallel(arguments, {.stage = kStage}) {}
};

// Stage 3 that holds what stage 2 holds.
struct NothingResharded final : Engine<3> {
  using Engine::Engine;
  void optimizer_step() override {
    Engine::optimizer_step();
    for (std::size_t u = 0; u < list().units.size(); ++u) gather(u, train::Gather::kRead);
  }
};

}  // namespace

std::vector<Mutant> mutants_of_the_engine() {
  return {
      {"engine_stale_parameters", "updated shards are never gathered", "Parity.AdamW", "engine2",
       make_mutant<StaleParameters<Engine<2>>>},
      {"engine_sum_for_mean", "gradients are summed, not averaged", "Parity.AdamW", "engine3",
       make_mutant<SumForMean<Engine<3>>>},
      {"engine_nothing_resharded", "parameters stay whole after the step",
       "Residency.ModelStatesAtRestAreThoseOfTheFormula", "engine3", make_mutant<NothingResharded>},
  };
}

}  // namespace zero::testing
