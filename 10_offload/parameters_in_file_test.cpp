// Chapter 05 with its shards in a file beside the same in memory and beside chapter 00: the bits,
// what moves to and from the file, and what is in memory when.

#include "parameters_in_file.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include <00_simple_ddp/simple_ddp.hpp>
#include <tests/support/overlap_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/memory/accounting.hpp>

#include "tile_file.hpp"

namespace zero {
namespace {

using memory::Category;
using optim::TileFile;
using testing::on_ranks;
using testing::TestFolder;
using testing::whole_weights;

// One rank that trains a model with its shards in a file of `folder`.
template <class Model>
struct RunInFile : testing::ToyRun<ShardedDataParallel, Model> {
  RunInFile(dist::Communicator& communicator, const TestFolder& folder,
            const ShardingOptions& options = {})
      : testing::ToyRun<ShardedDataParallel, Model>(
            communicator, [&](const train::StrategyArguments& arguments) {
              return make_parameters_in_file(arguments, options,
                                             {.folder = folder.path(), .tile_bytes = 0});
            }) {}
};

// This rank's moments.
std::vector<at::Tensor> moments(const train::Strategy& strategy) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor mine = strategy.placement(i).updated.tensor;
    if (!mine.defined()) continue;
    for (const auto& [name, state] : strategy.optimizer().state(mine)) all.push_back(state);
  }
  return all;
}

// This rank's, which stay readable after the update.
std::vector<at::Tensor> gradients(const train::Strategy& strategy) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor mine = strategy.placement(i).updated.tensor;
    if (mine.defined()) all.push_back(mine.grad());
  }
  return all;
}

ZERO_TESTS_ON_RANKS(ParametersInFile, 1, 2, 3);

TEST_P(ParametersInFile, HaveTheBitsOfChapters05And00) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    testing::ToyRun<SimpleDdp> ddp(communicator);
    for (int step = 0; step < 6; ++step) ddp.step(step);
    for (const ShardingOptions& options :
         {ShardingOptions{}, testing::small_buckets(3), ShardingOptions{.lookahead = 0}}) {
      testing::OverlapRun<testing::Toy> resident(communicator, options);
      RunInFile<testing::Toy> run(communicator, folder, options);
      for (int step = 0; step < 5; ++step) {
        const auto sent = run.step(step), expected = resident.step(step);
        EXPECT_EQ(testing::training_bytes(sent), testing::training_bytes(expected));
      }
      for (auto* strategy : {&run.strategy, &resident.strategy}) {
        strategy->backward(testing::forward_batch(*strategy, run.batch(5)));
        strategy->finish_backward();
        strategy->optimizer_step();
      }
      EXPECT_TRUE(testing::same_bits(gradients(run.strategy), gradients(resident.strategy)));
      EXPECT_EQ(run.strategy.costs().sent, resident.strategy.costs().sent);
      EXPECT_TRUE(testing::same_bits(moments(run.strategy), moments(resident.strategy)));
      const std::vector<at::Tensor> weights = whole_weights(run.strategy);
      EXPECT_TRUE(testing::same_bits(weights, whole_weights(resident.strategy)));
      EXPECT_TRUE(testing::same_bits(weights, whole_weights(ddp.strategy)));
    }
  });
  EXPECT_TRUE(folder.listing().empty());
}

// Bytes of this rank's slots, by unit, each with one bucket.
std::vector<std::int64_t> slots_of(const ShardedDataParallel& strategy) {
  std::vector<std::int64_t> slots(strategy.list().units.size());
  for (const train::FlatParameters& bucket : strategy.buckets()) {
    slots[strategy.list().parameters[bucket.members().front()].unit] +=
        TileFile::aligned(bucket.shard_bytes());
  }
  return slots;
}

std::int64_t sum(const std::vector<std::int64_t>& of) {
  return std::accumulate(of.begin(), of.end(), std::int64_t{0});
}

// A slot is read for each gather, but for the last unit's in backward, which forward has just read;
// and read and written in the update.
TEST_P(ParametersInFile, MoveTheBytesOfTheFormula) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    RunInFile<testing::Medium> run(communicator, folder);
    const std::vector<std::int64_t> slots = slots_of(run.strategy);
    ASSERT_EQ(slots.size(), run.strategy.buckets().size());
    const std::int64_t all = sum(slots), passes = 2 * all - slots.front() - slots.back();
    for (int step = 0; step < 4; ++step) {
      const optim::OffloadTraffic before = run.strategy.optimizer().offload_traffic();
      const int micro_batches = 1 + step % 2;
      std::vector<data::Batch> batches;
      for (int k = 0; k < micro_batches; ++k) batches.push_back(run.batch(2 * step + k));
      run.trainer.step(batches);
      const optim::OffloadTraffic after = run.strategy.optimizer().offload_traffic();
      EXPECT_EQ(after.read_bytes - before.read_bytes, micro_batches * passes + all);
      // Of the first step also the last slot of the initialization, which was not yet written.
      EXPECT_EQ(after.written_bytes - before.written_bytes, all + (step == 0 ? slots.back() : 0));
    }
  });
}

// Two of the largest slot, and in a pass the root and the units that are gathered.
TEST_P(ParametersInFile, HaveTwoSlotsInMemoryAndWhatIsGathered) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const std::int64_t lookahead : {0, 1}) {
      RunInFile<testing::Medium> run(communicator, folder, {.lookahead = lookahead});
      const std::vector<std::int64_t> slots = slots_of(run.strategy);
      const std::int64_t buffers = 2 * (std::ranges::max(slots) + TileFile::kAlignment);
      for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(run.held(Category::kParameters), buffers);
        EXPECT_EQ(run.strategy.costs().at_rest.parameters, buffers);
        run.step(step);
      }
      const std::vector<train::FlatParameters>& units = run.strategy.buckets();
      std::int64_t most = 0;
      for (std::size_t u = 1; u < units.size(); ++u) {
        const std::size_t next = u + static_cast<std::size_t>(lookahead);
        most = std::max(most, units[u].full_bytes() +
                                  (next > u && next < units.size() ? units[next].full_bytes() : 0));
      }
      memory::reset_peaks();
      run.step(2);
      EXPECT_EQ(run.peak(Category::kParameters), buffers + units[0].full_bytes() + most);
      EXPECT_EQ(run.held(Category::kParameters), buffers);
    }
  });
}

}  // namespace
}  // namespace zero
