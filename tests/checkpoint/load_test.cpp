// What is there when a checkpoint is loaded: buffers of each rank, units that a forward has left
// whole, gradients. And files that no rank takes anything from.
#include <ATen/ops/full.h>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(Load, 2, 3);

at::Tensor add_buffer(Session& session, double value) {
  return session.model().register_buffer("mean", at::full({3}, value));
}

TEST_P(Load, RestoresTheBuffersOfTheSameRankOrOfRank0) {
  const TestFolder folder;
  const int saved = GetParam();
  on_ranks(saved, [&](dist::Communicator& communicator) {
    Session session(communicator, kMode, checkpoint_options());
    session.step(0);
    add_buffer(session, 5 + communicator.rank());
    io::save_checkpoint(session.strategy(), folder.path(), note(1, kMode));
  });
  for (const int ranks : {1, saved, saved + 1}) {
    on_ranks(ranks, [&](dist::Communicator& communicator) {
      Session session(communicator, kMode, checkpoint_options());
      const at::Tensor buffer = add_buffer(session, 0);
      io::load_checkpoint(session.strategy(), folder.path());
      const int from = communicator.rank() < saved ? communicator.rank() : 0;
      EXPECT_TRUE(at::equal(buffer, at::full({3}, 5.0 + from))) << buffer;
    });
  }
}

// Of what a forward has left whole without a backward nothing is taken for the new values.
TEST_P(Load, AfterATrainingForwardTheModelIsTheOneThatWasSaved) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    Session saver(communicator, "ddp", checkpoint_options());
    saver.step(0);
    io::save_checkpoint(saver.strategy(), folder.path(), note(1, "ddp"));
    const double expected = saver.trainer().evaluate({saver.batch(1)});
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode, checkpoint_options(/*seed=*/77));
      const at::Tensor loss = forward_batch(session.strategy(), session.batch(2));
      io::load_checkpoint(session.strategy(), folder.path());
      expect_error([&] { session.strategy().backward(loss); }, {"weights that are gone"});
      EXPECT_EQ(session.trainer().evaluate({session.batch(1)}), expected) << mode;
    }
  });
}

TEST_P(Load, DropsGradients) {
  const TestFolder folder;
  on_all_modes(GetParam(), [&](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, checkpoint_options());
    train::Strategy& strategy = session.strategy();
    session.step(0);
    io::save_checkpoint(strategy, folder / mode, note(1, mode));
    session.step(1);
    io::load_checkpoint(strategy, folder / mode);
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      const at::Tensor mine = strategy.placement(i).updated.tensor;
      EXPECT_FALSE(mine.defined() && mine.grad().defined());
    }
    expect_error([&] { strategy.optimizer_step(); }, {"optimizer_step() before backward()"});
  });
}

// Under ddp rank 0 writes all parameters, the others only their buffers.
TEST(LoadAtASmallerWorld, ChecksFilesThatNoRankNeeds) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    Session session(communicator, "ddp", checkpoint_options());
    session.step(0);
    add_buffer(session, communicator.rank());
    io::save_checkpoint(session.strategy(), folder.path(), note(1, "ddp"));
  });
  const fs::path unneeded = folder / "step-000000001" / "rank-00002-of-00003.safetensors";
  flip_bit(unneeded, 0.999);
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](dist::Communicator& communicator) {
      Session session(communicator, "ddp", checkpoint_options());
      add_buffer(session, 0);
      EXPECT_THAT(refusal_of_loading(session, folder.path()),
                  HasSubstr("rank-00002-of-00003.safetensors: was altered"));
    });
  }
}

}  // namespace
}  // namespace zero::testing
