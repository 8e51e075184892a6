// Wrong implementations of groups of ranks that hold copies of each other.

#include <cmath>

#include <06_hsdp/hsdp.hpp>

#include "mutants.hpp"

namespace zero::testing {
namespace {

// A norm over all ranks, to which every group adds its copy.
struct NormCountedRTimes final : Hsdp {
  explicit NormCountedRTimes(const train::StrategyArguments& arguments)
      : Hsdp(arguments, base::options_from<HsdpOptions>(arguments.options)) {}
  float clip_grad_norm(double max_norm) override {
    const double copies = replica_group().size();
    return static_cast<float>(Hsdp::clip_grad_norm(max_norm / std::sqrt(copies)) *
                              std::sqrt(copies));
  }
};

// Shards where copies should be: the ranks of a group are far from each other.
struct WrongAxis final : Hsdp {
  explicit WrongAxis(const train::StrategyArguments& arguments)
      : Hsdp(base::options_from<HsdpOptions>(arguments.options), exchanged(arguments)) {}
  static train::StrategyArguments exchanged(train::StrategyArguments arguments) {
    const auto shards =
        static_cast<int>(base::options_from<HsdpOptions>(arguments.options).shard_size);
    arguments.mesh = {arguments.mesh.world(), {{"shard", shards}, {"replica", dist::Mesh::kRest}}};
    return arguments;
  }
};

// Averages inside the groups, and of those between them once more.
struct DividedTwice final : Hsdp {
  explicit DividedTwice(const train::StrategyArguments& arguments)
      : Hsdp(arguments, base::options_from<HsdpOptions>(arguments.options)) {}
  void shard_reduced(const train::ReducedShard& shard) override {
    at::Tensor(shard.sum).div_(shard_group().size());
    Hsdp::shard_reduced(shard);
  }
};

}  // namespace

std::vector<Mutant> mutants_of_the_mesh() {
  return {
      {"hsdp_norm_counted_r_times", "the clipping norm counts every copy of a shard",
       "HsdpAtTwoByTwo.ClipsByTheNormOfChapter00", "hsdp3", make_mutant<NormCountedRTimes>},
      {"hsdp_wrong_axis", "groups share states along the axis of the copies",
       "HsdpAtTwoByTwo.IsChapter00InTheOrderOfTheMesh", "hsdp3", make_mutant<WrongAxis>},
      {"hsdp_divided_twice", "a sum is divided inside the group and between the groups",
       "HsdpAtTwoByTwo.AveragesWholeNumbersAsAnyOrderDoes", "hsdp2", make_mutant<DividedTwice>},
  };
}

}  // namespace zero::testing
