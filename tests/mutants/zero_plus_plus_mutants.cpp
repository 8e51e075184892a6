// Wrong implementations of ZeRO++.

#include <memory>
#include <utility>

#include <07_zero_plus_plus/finish_work.hpp>
#include <07_zero_plus_plus/quantized_parameters.hpp>
#include <07_zero_plus_plus/zero_plus_plus.hpp>

#include "mutants.hpp"

namespace zero::testing {
namespace {

struct WrongZeroPlusPlus : ShardedDataParallel {
  using MakeTransfers =
      std::function<train::Transfers(const dist::Mesh& groups, const ZeroPlusPlusOptions&)>;
  WrongZeroPlusPlus(const train::StrategyArguments& arguments, const EngineConfig& config,
                    const MakeTransfers& transfers)
      : WrongZeroPlusPlus(transfers, arguments.with_shards(config.group_size), config) {}

 private:
  WrongZeroPlusPlus(const MakeTransfers& transfers, const train::StrategyArguments& groups,
                    const EngineConfig& config)
      : ShardedDataParallel(groups, sharding_options(config),
                            transfers(groups.mesh, zero_plus_plus_options(config))) {}
};

// Groups gather for ever what they kept of the first weights.
struct StaleSecondaryShard final : WrongZeroPlusPlus {
  StaleSecondaryShard(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongZeroPlusPlus(arguments, config, stale) {}
  static train::Transfers stale(const dist::Mesh& groups, const ZeroPlusPlusOptions& options) {
    train::Transfers transfers = zero_plus_plus_transfers(groups, options);
    transfers.parameters = [real = transfers.parameters](train::FlatBuffer buffer) {
      buffer.version = [] { return 0; };
      return real(buffer);
    };
    return transfers;
  }
};

// Does something to what has been gathered.
class SpoiltParameters final : public train::ParameterTransfer {
 public:
  using Spoil = std::function<void(const at::Tensor& full, const at::Tensor& shard)>;
  SpoiltParameters(std::unique_ptr<train::ParameterTransfer> real, Spoil spoil)
      : real_(std::move(real)), spoil_(std::move(spoil)) {}
  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override {
    return finish_with(real_->gather(full, shard), [this, full, shard] { spoil_(full, shard); });
  }
  bool reads_shard() const override { return real_->reads_shard(); }
  bool rounds() const override { return real_->rounds(); }
  std::int64_t held_bytes() const override { return real_->held_bytes(); }
  train::SentBytes sent(std::int64_t gathers) const override { return real_->sent(gathers); }

 private:
  std::unique_ptr<train::ParameterTransfer> real_;
  Spoil spoil_;
};

// The owner of a shard computes with the weights that only it has.
struct OwnShardNotDequantized final : WrongZeroPlusPlus {
  OwnShardNotDequantized(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongZeroPlusPlus(arguments, config, spoilt) {}
  static train::Transfers spoilt(const dist::Mesh& mesh, const ZeroPlusPlusOptions& options) {
    train::Transfers transfers = zero_plus_plus_transfers(mesh, options);
    transfers.parameters = [real = transfers.parameters,
                            rank = mesh.data().rank()](const train::FlatBuffer& buffer) {
      return std::make_unique<SpoiltParameters>(
          real(buffer), [rank](const at::Tensor& full, const at::Tensor& shard) {
            full.narrow(0, rank * shard.numel(), shard.numel()).copy_(shard);
          });
    };
    return transfers;
  }
};

// Every block but the last of a shard takes the scale of the one behind it.
struct ScalesOfTheNextBlock final : WrongZeroPlusPlus {
  ScalesOfTheNextBlock(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongZeroPlusPlus(arguments, config, spoilt) {}

  static void shift_scales(const at::Tensor& packed, const train::ShardLayout& layout) {
    const std::int64_t bytes = packed.numel() / layout.world_size();
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      std::int64_t blocks = 0;  // one for each parameter in the shard: they are small
      for (std::size_t t = 0; t < layout.tensors(); ++t) blocks += layout.range(t, rank).size > 0;
      if (blocks < 2) continue;
      const at::Tensor scales = packed.narrow(0, rank * bytes, 4 * blocks);
      scales.narrow(0, 0, 4 * (blocks - 1)).copy_(scales.narrow(0, 4, 4 * (blocks - 1)).clone());
    }
  }

  static train::Transfers spoilt(const dist::Mesh& mesh, const ZeroPlusPlusOptions& options) {
    train::Transfers transfers = zero_plus_plus_transfers(mesh, options);
    transfers.parameters = [&all = mesh.data()](const train::FlatBuffer& buffer) {
      ShardBlocks blocks(buffer.layout, {.bits = 8, .block = 2048});
      auto bytes =
          std::make_unique<train::AllGather>(all, blocks.packed_bytes(), /*ranks_outside=*/0);
      auto spoilt_bytes = std::make_unique<SpoiltParameters>(
          std::move(bytes), [layout = buffer.layout](const at::Tensor& packed, const at::Tensor&) {
            shift_scales(packed, layout);
          });
      return std::make_unique<QuantizedParameters>(std::move(spoilt_bytes), std::move(blocks),
                                                   all.rank(), buffer.pool);
    };
    return transfers;
  }
};

// Does something to averages. `own`: this rank's gradients of the same shard.
class SpoiltGradients final : public train::GradientTransfer {
 public:
  using Spoil = std::function<void(const at::Tensor& average, const at::Tensor& own)>;
  SpoiltGradients(std::unique_ptr<train::GradientTransfer> real, int rank, Spoil spoil)
      : real_(std::move(real)), rank_(rank), spoil_(std::move(spoil)) {}
  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override {
    own_ = full.narrow(0, rank_ * shard.numel(), shard.numel()).clone();
    return real_->reduce(full, shard);
  }
  bool has_rest() const override { return true; }
  dist::Work reduce_rest(const at::Tensor& shard) override {
    return finish_with(real_->reduce_rest(shard),
                       [this, shard, own = own_] { spoil_(shard, own); });
  }
  train::SentBytes sent() const override { return real_->sent(); }

 private:
  std::unique_ptr<train::GradientTransfer> real_;
  int rank_;
  Spoil spoil_;
  at::Tensor own_;
};

using MakeSpoil = std::function<SpoiltGradients::Spoil(const dist::Mesh&)>;

struct WrongAverage : WrongZeroPlusPlus {
  WrongAverage(const train::StrategyArguments& arguments, const EngineConfig& config,
               const MakeSpoil& make)
      : WrongZeroPlusPlus(arguments, config,
                          [make](const dist::Mesh& mesh, const ZeroPlusPlusOptions& options) {
                            train::Transfers transfers = zero_plus_plus_transfers(mesh, options);
                            transfers.gradients = [real = transfers.gradients, spoil = make(mesh),
                                                   rank = mesh.data().rank()](const auto& buffer) {
                              return std::make_unique<SpoiltGradients>(real(buffer), rank, spoil);
                            };
                            return transfers;
                          }) {}
};

// The sum of all ranks is divided by the number of groups.
struct AverageOverGroups final : WrongAverage {
  AverageOverGroups(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongAverage(arguments, config, [](const dist::Mesh& mesh) {
          return [size = mesh.along("shard").size()](const at::Tensor& average, const auto&) {
            average.mul_(size);
          };
        }) {}
};

// Sums that stay in 4 bits end at what one rank could send.
struct SumsInInt4 final : WrongAverage {
  SumsInInt4(const train::StrategyArguments& arguments, const EngineConfig& config)
      : WrongAverage(arguments, config, [](const dist::Mesh& mesh) {
          return [size = mesh.data().size()](const at::Tensor& average, const at::Tensor& own) {
            const at::Tensor most = own.abs().max() / size;
            average.clamp_(-most, most);
          };
        }) {}
};

}  // namespace

std::vector<Mutant> mutants_of_zero_plus_plus() {
  const char* const two_hops = "QgzAtTwoByTwo.IsWithinTheBoundOfTwoHopsOfTheTrueMean";
  return {
      {"hpz_stale_secondary_shard", "groups gather what they kept of the first weights",
       "HpzAtTwoByTwo.HasTheBitsOfChapter00AfterALoadAnEvaluationAndASkippedStep", "hpz",
       make_mutant<StaleSecondaryShard>},
      {"qwz_own_shard_not_dequantized", "the owner of a shard computes with other weights",
       "QwzAtTwoByTwo.ComputesWithTheSameBitsOnAllRanks", "qwz",
       make_mutant<OwnShardNotDequantized>},
      {"qwz_scales_of_the_next_block", "a block takes the scale of the one behind it",
       "QwzAtTwoByTwo.RoundsByHalfAStep", "qwz", make_mutant<ScalesOfTheNextBlock>},
      {"qgz_average_over_groups", "the sum of all ranks is divided by the number of groups",
       two_hops, "qgz", make_mutant<AverageOverGroups>},
      {"qgz_sums_in_int4", "sums of gradients stay in 4 bits", two_hops, "qgz",
       make_mutant<SumsInInt4>},
  };
}

}  // namespace zero::testing
