// A run that stops and goes on: at the same world size as if it had never stopped, at another or
// under another strategy with exactly what was there.
#include <fmt/format.h>

#include <tests/support/optimizers.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/two_bytes.hpp>
#include <tests/support/whole_state.hpp>

namespace zero::testing {
namespace {

constexpr int kStop = 3;
constexpr int kEnd = 6;

// Losses and loss scales of these steps.
std::vector<double> train(Session& session, int from, int to) {
  std::vector<double> seen;
  for (int step = from; step < to; ++step) {
    const tools::StepResult result = session.step(step);
    seen.insert(seen.end(), {result.loss, result.loss_scale});
  }
  return seen;
}

// Trains to the end in one go, and again with a stop, on these ranks; both must come to the same.
void expect_resumed_like_uninterrupted(dist::Communicator& communicator, const std::string& mode,
                                       SessionOptions options) {
  SCOPED_TRACE(mode);
  const TestFolder own;  // of rank 0 is the one that counts
  const std::filesystem::path folder = communicator.exchange(own.path().string()).front();
  Session whole(communicator, mode, options);
  train(whole, 0, kStop);
  const WholeState expected_at_stop = whole_state(whole);
  const std::vector<double> expected_losses = train(whole, kStop, kEnd);
  const WholeState expected = whole_state(whole);
  {
    Session first(communicator, mode, options);
    train(first, 0, kStop);
    io::CheckpointInfo info = note(kStop, mode);
    if (const auto& scale = first.trainer().loss_scale()) scale->write_to(info.notes);
    io::save_checkpoint(first.strategy(), folder, info);
    EXPECT_TRUE(same_state(whole_state(first), expected_at_stop)) << "saving changed it";
  }
  options.seed += 100;
  options.trainer.first_step = kStop;
  Session second(communicator, mode, options);
  EXPECT_FALSE(same_state(whole_state(second), expected_at_stop));
  const io::CheckpointInfo info = io::load_checkpoint(second.strategy(), folder);
  if (auto& scale = second.trainer().loss_scale()) scale->resume_from(info.notes);
  EXPECT_TRUE(same_state(whole_state(second), expected_at_stop));
  EXPECT_EQ(train(second, static_cast<int>(info.step), kEnd), expected_losses);
  EXPECT_EQ(second.trainer().steps(), whole.trainer().steps());
  EXPECT_TRUE(same_state(whole_state(second), expected));
  EXPECT_FALSE(same_state(expected_at_stop, expected)) << "trained nothing";

  EXPECT_EQ(info.mode, mode);
  EXPECT_EQ(info.sampler, note(kStop, mode).sampler);
  EXPECT_EQ(info.random, note(kStop, mode).random);
  EXPECT_EQ(info.world_size, communicator.size());
  communicator.barrier();  // rank 0's folder lives until all have read
}

// Checkpoints hold the weights themselves, so that what is rounded on its way is the same again.
TEST(SameWorldInGroups, ModesThatRoundGoOnToTheLastBit) {
  on_ranks(4, [](dist::Communicator& communicator) {
    for (const char* mode : {"qwz:group_size=2", "qgz:group_size=2", "zeropp:group_size=2"}) {
      expect_resumed_like_uninterrupted(communicator, mode, checkpoint_options());
    }
  });
}

ZERO_TESTS_ON_RANKS(SameWorld, 1, 2, 3);

TEST_P(SameWorld, EveryModeGoesOnToTheLastBit) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    expect_resumed_like_uninterrupted(communicator, mode, checkpoint_options());
    // Master weights and the loss scale come back, too.
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      SessionOptions options = mixed(dtype);
      if (dtype == at::kHalf) {
        options.trainer.loss_scale = train::LossScaleOptions{.initial = 256, .growth_steps = 2};
      }
      expect_resumed_like_uninterrupted(communicator, mode, options);
    }
  });
}

TEST_P(SameWorld, OtherOptimizersGoOnToTheLastBit) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const OptimizerKind& kind : optimizer_kinds()) {
      SCOPED_TRACE(kind.name);
      SessionOptions options = checkpoint_options();
      options.optimizer = kind.make;
      for (const std::string mode : {"zero2", "engine3"}) {
        if (mode == "engine3" && kind.name == "Muon") continue;  // it cuts matrices
        expect_resumed_like_uninterrupted(communicator, mode, options);
      }
    }
  });
}

struct Change {
  std::string from_mode;
  int from;
  std::string to_mode;
  int to;
  at::ScalarType dtype = at::kFloat;  // master weights move with a 2-byte type
};

SessionOptions options_of(const Change& change, std::uint64_t seed) {
  SessionOptions options = change.dtype == at::kFloat ? checkpoint_options() : mixed(change.dtype);
  options.seed = seed;
  return options;
}

void expect_everything_is_there(const Change& change) {
  const TestFolder folder;
  on_ranks(change.from, [&](dist::Communicator& communicator) {
    Session session(communicator, change.from_mode, options_of(change, /*seed=*/3));
    train(session, 0, kStop);
    const WholeState state = whole_state(session);
    if (communicator.rank() == 0) keep(folder / "expected.safetensors", state);
    io::save_checkpoint(session.strategy(), folder / "run", note(kStop, change.from_mode));
  });
  on_ranks(change.to, [&](dist::Communicator& communicator) {
    Session session(communicator, change.to_mode, options_of(change, /*seed=*/77));
    train(session, 0, 1);  // what was there before must go
    const io::CheckpointInfo info = io::load_checkpoint(session.strategy(), folder / "run");
    EXPECT_EQ(info.world_size, change.from);
    EXPECT_EQ(info.step, kStop);
    ASSERT_EQ(info.optimizer.groups.size(), 1U);
    if (change.dtype == at::kFloat) {
      EXPECT_EQ(info.optimizer.kind, "AdamW");
      EXPECT_EQ(info.optimizer.groups[0].at("learning_rate"), 0.01);
    }
    const WholeState expected = kept(folder / "expected.safetensors");
    EXPECT_TRUE(same_state(whole_state(session), expected));
    train(session, kStop, kEnd);
    EXPECT_FALSE(same_state(whole_state(session), expected)) << "it does not go on";
  });
}

TEST(OtherWorld, EveryElementStateAndStepCountIsThere) {
  for (const Change& change : {Change{"tensor_zero3", 2, "tensor_zero3", 1},
                               {"tensor_zero3", 2, "tensor_zero3", 4},
                               {"tensor_zero3", 4, "tensor_zero3", 2},
                               {"zero1", 2, "zero1", 4},
                               {"tensor_zero2", 4, "tensor_zero2", 2},
                               {"zero3", 2, "zero3", 1},
                               {"zero3", 3, "zero3", 8},
                               {"zero3", 8, "zero3", 3},
                               {"tensor_zero3", 3, "tensor_zero3", 8},
                               {"tensor_zero3", 8, "tensor_zero3", 3},
                               {"tensor_zero1", 8, "zero2", 3},
                               {"tensor_zero3", 3, "ddp", 2},
                               {"ddp", 2, "tensor_zero3", 3},
                               {"zero3", 2, "tensor_zero1", 2},
                               {"tensor_zero3:per_parameter", 2, "zero3", 2},
                               {"hsdp3:shard_size=2", 4, "hsdp3:shard_size=2", 2},
                               {"hsdp3:shard_size=2", 4, "hsdp2:shard_size=1", 3},
                               {"hsdp1:shard_size=2", 4, "hsdp3:shard_size=4", 4},
                               {"hsdp2:shard_size=2", 6, "engine3", 3},
                               {"engine3", 3, "hsdp3:shard_size=2", 6},
                               {"hpz:group_size=2", 4, "hpz:group_size=1", 2},
                               {"hpz:group_size=2", 4, "zero2", 3},
                               {"engine3", 3, "hpz:group_size=2", 4},
                               {"tensor_zero3", 3, "ddp", 2, at::kBFloat16},
                               {"tensor_zero3", 3, "zero1", 2, at::kBFloat16},
                               {"tensor_zero3", 3, "tensor_zero2", 2, at::kBFloat16},
                               {"tensor_zero3", 3, "zero3", 2, at::kBFloat16},
                               {"hsdp3:shard_size=2", 4, "hsdp2:shard_size=3", 3, at::kBFloat16}}) {
    SCOPED_TRACE(fmt::format("{} at {} to {} at {}, {}", change.from_mode, change.from,
                             change.to_mode, change.to, c10::toString(change.dtype)));
    expect_everything_is_there(change);
  }
}

}  // namespace
}  // namespace zero::testing
