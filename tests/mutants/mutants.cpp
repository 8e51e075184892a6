// Wrong implementations. Each takes the place of a real strategy under its own name, so that the
// unmodified tests run on it; one of them must fail by an assertion.

#include "mutants.hpp"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <01_zero1/zero1_sharding.hpp>
#include <02_zero2/zero2_sharding.hpp>
#include <03_zero3/zero3_sharding.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/norm.hpp>
#include <zero/train/cost_sums.hpp>

namespace zero {
namespace tools {
void register_real_chapters(Registry& registry);
}
namespace testing {
namespace {

using train::StrategyArguments;

// Every rank keeps moments for everything. The weights come out right all the same.
struct UnshardedOptimizer final : Zero1Sharding {
  explicit UnshardedOptimizer(const StrategyArguments& arguments) : Zero1Sharding(arguments) {
    std::vector<at::Tensor> not_owned;
    for (std::size_t i = 0; i < count(); ++i) {
      if (!owns(i)) not_owned.push_back(parameter(i));
    }
    optimizer_of_others_ = arguments.optimizer(not_owned);
  }
  void optimizer_step() override {
    optimizer_of_others_->step();
    Zero1Sharding::optimizer_step();
  }
  std::unique_ptr<optim::Optimizer> optimizer_of_others_;
};

// A norm over what this rank owns, as if there were no others.
struct LocalNorm final : Zero1Sharding {
  using Zero1Sharding::Zero1Sharding;
  float clip_grad_norm(double max_norm) override {
    std::vector<at::Tensor> mine;
    for (std::size_t i = 0; i < count(); ++i) {
      if (owns(i) && gradient(i).defined()) mine.push_back(gradient(i));
    }
    const double norm = optim::norm_from_squares(optim::squared_norms(mine));
    const double coefficient = optim::clip_coefficient(norm, max_norm);
    for (at::Tensor& gradient : mine) gradient.mul_(coefficient);
    return norm;
  }
};

// A norm to which every rank adds every gradient.
struct NormCountedNTimes final : Zero1Sharding {
  using Zero1Sharding::Zero1Sharding;
  float clip_grad_norm(double max_norm) override {
    // Scaling the limit down by sqrt(N) is what counting N times does.
    return Zero1Sharding::clip_grad_norm(max_norm / std::sqrt(communicator_.size()));
  }
};

// A limit on the norm itself, where LibTorch adds 1e-6 to the norm first.
struct ClipWithoutEpsilon final : Zero1Sharding {
  using Zero1Sharding::Zero1Sharding;
  float clip_grad_norm(double max_norm) override {
    const float norm = Zero1Sharding::clip_grad_norm(std::numeric_limits<float>::max());
    if (norm > max_norm) averaged_gradients().multiply(max_norm / norm);
    return norm;
  }
};

// Owners keep their news to themselves, but for one of them.
struct SkippedParameterBroadcast final : Zero1Sharding {
  using Zero1Sharding::Zero1Sharding;
  void sync_parameters() override {
    std::vector<std::size_t> all_but_one = backward_order();
    all_but_one.erase(all_but_one.begin());
    const train::Owners owners(list(), communicator_);
    train::broadcast_from_owners(list(), all_but_one, owners, communicator_);
  }
};

// Each rank believes that it owns what its neighbour owns.
struct OffByOneShard final : Zero1Sharding {
  using Zero1Sharding::Zero1Sharding;
  void sync_parameters() override {
    const train::Owners owners(list(), communicator_);
    for (const std::size_t i : backward_order()) {
      const int neighbour = (owners.of(i) + 1) % communicator_.size();
      communicator_.broadcast(memory::raw(parameter(i)), neighbour, dist::Purpose::kParameter)
          .wait();
    }
  }
};

// The gradient "zeroed, not freed": right numbers, no memory saved.
struct GradientsKeptWhole final : Zero2Sharding {
  using Zero2Sharding::Zero2Sharding;
  void finish_backward() override {
    Zero2Sharding::finish_backward();
    const memory::Charge charge(memory::Category::kGradients);
    for (const std::size_t i : backward_order()) {
      if (!owns(i)) gradient(i) = at::zeros_like(memory::raw(parameter(i)));
    }
  }
};

// Storage without contents: the gather that was forgotten.
struct SkippedGather final : Zero3Sharding {
  using Zero3Sharding::Zero3Sharding;
  void gather(std::size_t unit, train::Gather why) override {
    Zero3Sharding::gather(unit, why);
    if (unit != 1) return;
    for (const std::size_t i : list().units[unit].parameters) {
      if (!owns(i)) memory::raw(parameter(i)).zero_();
    }
  }
};

// A formula for units that are used once, whatever the model does.
struct TrafficOfOneUse final : Zero3Sharding {
  using Zero3Sharding::Zero3Sharding;
  train::Costs costs() const override {
    train::Costs costs = Zero3Sharding::costs();
    const train::CostSums v(*this);
    costs.sent = v.reduced - v.own_reduced;
    for (std::size_t i = 0; i < count(); ++i) {
      const nn::Parameter& p = list().parameters[i];
      if (owns(i)) costs.sent += v.others * (p.unit == 0 ? 1 : 2) * p.bytes();
    }
    return costs;
  }
};

// Shards, and beside them the whole model, charged to nothing in particular.
struct HiddenFullCopy final : Zero3Sharding {
  using Zero3Sharding::Zero3Sharding;
  void finish_backward() override {
    Zero3Sharding::finish_backward();
    copy.clear();
    for (std::size_t u = 0; u < list().units.size(); ++u) {
      gather(u, train::Gather::kRead);
      for (const std::size_t i : list().units[u].parameters)
        copy.push_back(parameter(i).detach().clone());
      drop(u);
    }
  }
  std::vector<at::Tensor> copy;
};

std::string chosen;

}  // namespace

std::vector<Mutant> mutants_of_owners() {
  return {
      {"sum_for_mean", "gradients are summed, not averaged", "Parity.AdamW", "zero1",
       make_mutant<SumForMean<Zero1Sharding>>},
      {"unsharded_optimizer", "every rank keeps all optimizer states",
       "Residency.ModelStatesAtRestAreThoseOfTheFormula", "zero1", make_mutant<UnshardedOptimizer>},
      {"local_norm", "the clipping norm sees one rank's gradients only", "Parity.ClippedGradients",
       "zero1", make_mutant<LocalNorm>},
      {"norm_counted_n_times", "the clipping norm counts every gradient N times",
       "Parity.ClippedGradients", "zero1", make_mutant<NormCountedNTimes>},
      {"clip_without_epsilon", "gradients are clipped to the limit itself, not as by LibTorch",
       "LibTorch.NormsAreThoseOfClipGradNormAndSoIsWhatTheyClip", "zero1",
       make_mutant<ClipWithoutEpsilon>},
      {"skipped_broadcast", "one updated parameter stays with its owner", "Parity.AdamW", "zero1",
       make_mutant<SkippedParameterBroadcast>},
      {"off_by_one_shard", "the neighbour of the owner broadcasts", "Parity.AdamW", "zero1",
       make_mutant<OffByOneShard>},
      {"gradients_kept_whole", "gradients of others are zeroed instead of freed",
       "Residency.ModelStatesAtRestAreThoseOfTheFormula", "zero2", make_mutant<GradientsKeptWhole>},
      {"skipped_gather", "one unit runs on parameters that were never gathered", "Parity.AdamW",
       "zero3", make_mutant<SkippedGather>},
      {"traffic_of_one_use", "the formula forgets that a unit may run twice in a forward",
       "LayersOfUnits.SendWhatTheModeSaysAndLeaveNothingWhole", "zero3",
       make_mutant<TrafficOfOneUse>},
      {"hidden_full_copy", "a rank keeps a whole copy of the parameters",
       "Residency.NothingElseIsAliveAtRest", "zero3", make_mutant<HiddenFullCopy>},
  };
}

std::vector<Mutant> mutants() {
  std::vector<Mutant> all = mutants_of_owners();
  for (const auto& more : {mutants_of_shards(), mutants_of_the_engine(), mutants_of_the_mesh(),
                           mutants_of_zero_plus_plus(), mutants_of_splits()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void choose_mutant(const std::string& name) { chosen = name; }

std::string chapter_of(const Mutant& mutant) {
  if (!mutant.chapter.empty()) return mutant.chapter;
  tools::Registry real;
  tools::register_real_chapters(real);
  for (const tools::StrategyEntry& entry : real.entries()) {
    if (entry.name == mutant.replaces) return entry.chapter;
  }
  return "no chapter";
}

}  // namespace testing

namespace tools {

// In this program, this is what the tests call: plain DDP, and the mutant under the real one's name
// (for one of chapter 06 hierarchical DDP as well, with which its tests compare).
void register_all_chapters(Registry& registry) {
  Registry real;
  register_real_chapters(real);
  const auto all = testing::mutants();
  const auto wrong = std::find_if(all.begin(), all.end(), [](const testing::Mutant& mutant) {
    return mutant.name == testing::chosen;
  });
  const std::string replaces = wrong == all.end() ? "" : wrong->replaces;
  for (StrategyEntry entry : real.entries()) {
    const bool replaced = entry.name == replaces;
    if (replaced) {
      entry.variants.resize(1);
      if (!entry.presets.empty()) entry.presets.resize(1);
      entry.make = wrong->make;
    }
    if (replaced || entry.name == "ddp" || (entry.name == "hddp" && replaces.starts_with("hsdp"))) {
      registry.add(entry);
    }
  }
}

}  // namespace tools
}  // namespace zero
