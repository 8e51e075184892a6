// Checkpoints of runs in 2-byte types: master weights come back, so that a run goes on to the last
// bit; and what has none is not taken for one that has.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;
using testing::TestFolder;

SessionOptions mixed(at::ScalarType dtype, std::uint64_t seed = 3) {
  SessionOptions options = checkpoint_options(seed);
  options.model.dtype = dtype;
  options.optimizer = optim::with_master_weights(optim::adamw({.learning_rate = 0.02}));
  if (dtype == at::kHalf) {
    options.trainer.loss_scale = train::LossScaleOptions{.initial = 256, .growth_steps = 2};
  }
  return options;
}

// Steps [from, to): what they came to.
std::vector<double> losses_and_scales(Session& session, int from, int to) {
  std::vector<double> seen;
  for (int step = from; step < to; ++step) {
    const train::StepResult result = session.step(step);
    seen.push_back(result.loss);
    seen.push_back(result.loss_scale);
  }
  return seen;
}

io::CheckpointInfo note_of(Session& session, int step, const std::string& mode) {
  io::CheckpointInfo info = note(step, mode);
  if (const auto& scale = session.trainer().loss_scale()) {
    info.notes["loss scale"] = scale->to_text();
  }
  return info;
}

class MixedPrecisionResume : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MixedPrecisionResume, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(MixedPrecisionResume, EveryModeGoesOnToTheLastBit) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const std::string& mode : all_modes()) {
        const TestFolder own;  // of rank 0 is the one that counts
        const std::filesystem::path folder = communicator.exchange(own.path().string()).front();
        Session whole(communicator, mode, mixed(dtype));
        losses_and_scales(whole, 0, 3);
        io::save_checkpoint(whole.strategy(), folder, note_of(whole, 3, mode));
        const WholeState at_stop = whole_state(whole);
        const std::vector<double> expected = losses_and_scales(whole, 3, 6);

        Session second(communicator, mode, mixed(dtype, /*seed=*/50));
        const io::CheckpointInfo info = io::load_checkpoint(second.strategy(), folder);
        if (dtype == at::kHalf) {
          second.trainer().loss_scale()->set_from_text(info.notes.at("loss scale"));
        }
        EXPECT_TRUE(same_state(whole_state(second), at_stop)) << mode;
        EXPECT_EQ(losses_and_scales(second, 3, 6), expected) << mode;
        EXPECT_TRUE(same_state(whole_state(second), whole_state(whole))) << mode;
        EXPECT_EQ(info.optimizer.kind, "AdamW with master weights");
        communicator.barrier();  // rank 0's folder lives until all have read
      }
    }
  });
}

TEST(MixedPrecisionCheckpoint, MovesToAnotherStageAndWorldSize) {
  const TestFolder folder;
  const auto on = [&](int ranks, const std::string& mode, bool saves) {
    on_ranks(ranks, [&](dist::Communicator& communicator) {
      Session session(communicator, mode, mixed(at::kBFloat16, saves ? 3 : 50));
      if (saves) {
        losses_and_scales(session, 0, 3);
        io::save_checkpoint(session.strategy(), folder / "run", note(3, mode));
        const WholeState state = whole_state(session);
        if (communicator.rank() == 0) keep(folder / "state.safetensors", state);
      } else {
        io::load_checkpoint(session.strategy(), folder / "run");
        EXPECT_TRUE(same_state(whole_state(session), kept(folder / "state.safetensors"))) << mode;
      }
    });
  };
  on(3, "tensor_zero3", /*saves=*/true);
  for (const std::string mode : {"ddp", "zero1", "tensor_zero2", "zero3"}) {
    on(2, mode, /*saves=*/false);
  }
}

TEST(MixedPrecisionCheckpoint, IsNotTakenForOneWithoutMasters) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    Session with(communicator, "zero1", mixed(at::kBFloat16));
    with.step(0);
    io::save_checkpoint(with.strategy(), folder / "with", note(1, "zero1"));
    SessionOptions plain = mixed(at::kBFloat16);
    plain.optimizer = optim::adamw();
    Session without(communicator, "zero1", plain);
    without.step(0);
    io::save_checkpoint(without.strategy(), folder / "without", note(1, "zero1"));
    EXPECT_THAT(refusal_of_loading(with, folder / "without"),
                HasSubstr("its optimizer is AdamW, that of this run AdamW with master weights"));
    EXPECT_THAT(refusal_of_loading(without, folder / "with"),
                HasSubstr("its optimizer is AdamW with master weights, that of this run AdamW"));
  });
}

}  // namespace
}  // namespace zero::testing
