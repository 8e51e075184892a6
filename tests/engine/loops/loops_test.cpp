// Loops that users of PyTorch write. Each has the bits of the plain program at every stage: the
// same modules in one process, with one optimizer over all parameters, and gradients that are
// averaged over the batches of all ranks.

#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/base/error.hpp>

#include "net.hpp"
#include "player.hpp"

namespace zero::testing::loops {
namespace {

ZERO_TESTS_ON_RANKS(LoopsOfUsers, 2, 3);
ZERO_TESTS_ON_RANKS(SlowLoopsOfUsers, 2, 3);

std::vector<Loop> all_loops() {
  std::vector<Loop> all;
  for (const auto& part :
       {adversarial_loops(), gradient_loops(), objective_loops(), schedule_loops()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// What a loop returns; empty if it threw, which is a failure.
Tensors played(const Loop& loop, Player& player) {
  try {
    return loop.play(player);
  } catch (const std::exception& error) {
    ADD_FAILURE() << zero::message_of(error);
    return {};
  }
}

void expect_the_plain_bits(dist::Communicator& communicator,
                           const std::vector<EngineConfig>& all_options) {
  for (const Loop& loop : all_loops()) {
    const Tensors expected = played(loop, *plain_player(communicator.size()));
    for (const EngineConfig& options : all_options) {
      if (loop.second_order && options.stage == 3) continue;
      SCOPED_TRACE(fmt::format("{}, {}", loop.name, base::text_of(options)));
      EXPECT_TRUE(same_bits(played(loop, *engine_player(communicator, options)), expected));
    }
  }
}

TEST_P(LoopsOfUsers, HaveTheBitsOfThePlainProgramAtEveryStage) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    expect_the_plain_bits(communicator, {{.stage = 0, .bucket_bytes = 256},
                                         {.stage = 1, .bucket_bytes = 256},
                                         {.stage = 2, .bucket_bytes = 256},
                                         {.stage = 3, .bucket_bytes = 256}});
  });
}

// With other options, and in groups of one rank, all of which hold copies.
TEST_P(SlowLoopsOfUsers, HaveTheBitsOfThePlainProgramWithOtherOptions) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    expect_the_plain_bits(communicator, {{.stage = 3, .lookahead = 0},
                                         {.stage = 3, .lookahead = 3, .keep_buffers = false},
                                         {.stage = 3, .whole_below = 60},
                                         {.stage = 2, .keep_gradients = false},
                                         {.stage = 1, .shard_size = 1},
                                         {.stage = 2, .shard_size = 1},
                                         {.stage = 3, .shard_size = 1},
                                         {.shard_size = communicator.size()}});
  });
}

}  // namespace
}  // namespace zero::testing::loops
