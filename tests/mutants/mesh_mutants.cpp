// Wrong implementations of groups of ranks that hold copies of each other.

#include <cmath>
#include <memory>
#include <utility>

#include "mutants.hpp"
#include "wrong_hsdp.hpp"

namespace zero::testing {
namespace {

// A norm over all ranks, to which every group adds its copy.
struct NormCountedRTimes final : WrongHsdp {
  using WrongHsdp::WrongHsdp;
  float clip_grad_norm(double max_norm) override {
    const double copies = mesh().along("replica").size();
    return static_cast<float>(ShardedDataParallel::clip_grad_norm(max_norm / std::sqrt(copies)) *
                              std::sqrt(copies));
  }
};

// Shards where copies should be: the ranks of a group are far from each other.
struct WrongAxis final : WrongHsdp {
  WrongAxis(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongHsdp(exchanged(arguments, config), config, transfers) {}
  static train::StrategyArguments exchanged(train::StrategyArguments arguments,
                                            const EngineConfig& config) {
    const auto shards = static_cast<int>(config.shard_size);
    arguments.mesh = {arguments.mesh.world(), {{"shard", shards}, {"replica", dist::Mesh::kRest}}};
    return arguments;
  }
};

// Averages inside the groups, and of those between them once more.
class AveragedTwice final : public train::GradientTransfer {
 public:
  AveragedTwice(std::unique_ptr<train::GradientTransfer> real, int group)
      : real_(std::move(real)), group_(group) {}
  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override {
    return real_->reduce(full, shard);
  }
  bool has_rest() const override { return true; }
  dist::Work reduce_rest(const at::Tensor& shard) override {
    at::Tensor(shard).div_(group_);
    return real_->reduce_rest(shard);
  }
  train::SentBytes sent() const override { return real_->sent(); }

 private:
  std::unique_ptr<train::GradientTransfer> real_;
  int group_;
};

struct DividedTwice final : WrongHsdp {
  DividedTwice(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongHsdp(arguments.with_shards(config.shard_size), config, twice) {}
  static train::Transfers twice(const train::StrategyArguments& groups) {
    train::Transfers transfers = hsdp_transfers(groups.mesh, groups.reduce_type);
    transfers.gradients = [real = transfers.gradients,
                           size = transfers.shards->size()](const train::FlatBuffer& buffer) {
      return std::make_unique<AveragedTwice>(real(buffer), size);
    };
    return transfers;
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
