// A run that stops and goes on: at the same world size as if it had never stopped, at another or
// under another strategy with exactly what was there.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <ostream>
#include <random>
#include <sstream>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::testing {
namespace {

using testing::TestFolder;

constexpr int kStop = 3;
constexpr int kEnd = 6;

std::vector<double> train(Session& session, int from, int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) losses.push_back(session.step(step).loss);
  return losses;
}

// Trains to the end in one go, and again with a stop, on these ranks; both must come to the same.
void expect_resumed_like_uninterrupted(dist::Communicator& communicator, const std::string& mode,
                                       SessionOptions options) {
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
    io::save_checkpoint(first.strategy(), folder, note(kStop, mode));
    EXPECT_TRUE(same_state(whole_state(first), expected_at_stop)) << mode << ": saving changed it";
  }
  options.seed += 100;
  options.trainer.first_step = kStop;
  Session second(communicator, mode, options);
  EXPECT_FALSE(same_state(whole_state(second), expected_at_stop)) << mode;
  const io::CheckpointInfo info = io::load_checkpoint(second.strategy(), folder);
  EXPECT_TRUE(same_state(whole_state(second), expected_at_stop)) << mode;
  const std::vector<double> losses = train(second, static_cast<int>(info.step), kEnd);
  EXPECT_EQ(losses, expected_losses) << mode;
  EXPECT_EQ(second.trainer().steps(), whole.trainer().steps());
  EXPECT_TRUE(same_state(whole_state(second), expected)) << mode;
  EXPECT_FALSE(same_state(expected_at_stop, expected)) << mode << " trained nothing";

  EXPECT_EQ(info.mode, mode);
  EXPECT_EQ(info.sampler, note(kStop, mode).sampler);
  EXPECT_EQ(info.random, note(kStop, mode).random);
  EXPECT_EQ(info.world_size, communicator.size());
  communicator.barrier();  // rank 0's folder lives until all have read
}

class SameWorld : public ::testing::TestWithParam<int> {};

TEST_P(SameWorld, EveryModeGoesOnToTheLastBit) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      expect_resumed_like_uninterrupted(communicator, mode, checkpoint_options());
    }
  });
}

TEST_P(SameWorld, OtherOptimizersGoOnToTheLastBit) {
  using Parameters = std::vector<at::Tensor>;
  const std::vector<optim::OptimizerFactory> factories = {
      optim::sgd({.learning_rate = 0.05}),
      optim::sgd({.learning_rate = 0.05, .momentum = 0.0}),
      [](const Parameters& p) {
        return optim::wrap(std::make_unique<torch::optim::Adam>(p, 0.01));
      },
      [](const Parameters& p) {
        return optim::wrap(
            std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.05).momentum(0.9)));
      },
      [](const Parameters& p) {
        return optim::wrap(std::make_unique<torch::optim::AdamW>(
            p, torch::optim::AdamWOptions(0.01).amsgrad(true)));
      },
      [](const Parameters& p) {
        return optim::wrap(std::make_unique<torch::optim::RMSprop>(
            p, torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true)));
      },
      [](const Parameters& p) {
        return optim::wrap(std::make_unique<torch::optim::Adagrad>(
            p, torch::optim::AdagradOptions(0.01).initial_accumulator_value(0.1).lr_decay(0.1)));
      }};
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const auto& factory : factories) {
      SessionOptions options = checkpoint_options();
      options.optimizer = factory;
      for (const std::string mode : {"zero2", "engine3"}) {
        expect_resumed_like_uninterrupted(communicator, mode, options);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SameWorld, ::testing::Values(1, 2, 3));

// Batches that a generator of the caller draws, whose state travels as text.
TEST(ResumeWithAGenerator, DrawsWhatItWouldHaveDrawn) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    const auto draw = [](Session& session, std::mt19937_64& random, int steps) {
      std::vector<double> losses;
      for (int i = 0; i < steps; ++i) {
        losses.push_back(session.step(static_cast<int>(random() % 1000)).loss);
      }
      return losses;
    };
    std::mt19937_64 random(5);
    Session whole(communicator, "zero2", checkpoint_options());
    draw(whole, random, kStop);
    io::CheckpointInfo info = note(kStop, "zero2");
    std::ostringstream text;
    text << random;
    info.random = text.str();
    io::save_checkpoint(whole.strategy(), folder / "run", info);
    const std::vector<double> expected = draw(whole, random, kEnd - kStop);

    Session second(communicator, "zero2", checkpoint_options(/*seed=*/77));
    std::mt19937_64 restored;
    std::istringstream(io::load_checkpoint(second.strategy(), folder / "run").random) >> restored;
    EXPECT_EQ(draw(second, restored, kEnd - kStop), expected);
    EXPECT_TRUE(same_state(whole_state(second), whole_state(whole)));
  });
}

struct Change {
  std::string from_mode;
  int from;
  std::string to_mode;
  int to;
};

void PrintTo(const Change& c, std::ostream* out) {
  *out << c.from_mode << " at " << c.from << " to " << c.to_mode << " at " << c.to;
}

class OtherWorld : public ::testing::TestWithParam<Change> {};

TEST_P(OtherWorld, EveryElementStateAndStepCountIsThere) {
  const Change change = GetParam();
  const TestFolder folder;
  on_ranks(change.from, [&](dist::Communicator& communicator) {
    Session session(communicator, change.from_mode, checkpoint_options());
    train(session, 0, kStop);
    const WholeState state = whole_state(session);
    if (communicator.rank() == 0) keep(folder / "expected.safetensors", state);
    io::save_checkpoint(session.strategy(), folder / "run", note(kStop, change.from_mode));
  });
  on_ranks(change.to, [&](dist::Communicator& communicator) {
    Session session(communicator, change.to_mode, checkpoint_options(/*seed=*/77));
    train(session, 0, 1);  // what was there before must go
    const io::CheckpointInfo info = io::load_checkpoint(session.strategy(), folder / "run");
    EXPECT_EQ(info.world_size, change.from);
    EXPECT_EQ(info.step, kStop);
    EXPECT_EQ(info.optimizer.kind, "AdamW");
    ASSERT_EQ(info.optimizer.groups.size(), 1U);
    EXPECT_EQ(info.optimizer.groups[0].at("learning_rate"), 0.01);
    const WholeState expected = kept(folder / "expected.safetensors");
    EXPECT_TRUE(same_state(whole_state(session), expected));
    train(session, kStop, kEnd);
    EXPECT_FALSE(same_state(whole_state(session), expected)) << "it does not go on";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Changes, OtherWorld,
    ::testing::Values(Change{"tensor_zero3", 2, "tensor_zero3", 1},
                      Change{"tensor_zero3", 2, "tensor_zero3", 4},
                      Change{"tensor_zero3", 4, "tensor_zero3", 2}, Change{"zero1", 2, "zero1", 4},
                      Change{"tensor_zero2", 4, "tensor_zero2", 2}, Change{"zero3", 2, "zero3", 1},
                      Change{"zero3", 3, "zero3", 8}, Change{"zero3", 8, "zero3", 3},
                      Change{"tensor_zero3", 3, "tensor_zero3", 8},
                      Change{"tensor_zero3", 8, "tensor_zero3", 3},
                      Change{"tensor_zero1", 8, "zero2", 3}, Change{"tensor_zero3", 3, "ddp", 2},
                      Change{"ddp", 2, "tensor_zero3", 3}, Change{"zero3", 2, "tensor_zero1", 2},
                      Change{"tensor_zero3:per_parameter", 2, "zero3", 2}),
    [](const auto& info) {
      std::string name = fmt::format("{}_{}_to_{}_{}", info.param.from_mode, info.param.from,
                                     info.param.to_mode, info.param.to);
      std::replace(name.begin(), name.end(), ':', '_');
      return name;
    });

}  // namespace
}  // namespace zero::testing
