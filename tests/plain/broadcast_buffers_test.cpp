// EngineConfig::broadcast_buffers: buffers of rank 0 before each forward that trains, as torch's
// DistributedDataParallel has it.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include <tests/support/hooked_communicator.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>

namespace zero::testing {
namespace {

// Running statistics are a part of the loss: with others the weights differ, too.
struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(7, 9))),
        norm(register_module("norm", torch::nn::BatchNorm1d(9))),
        last(register_module("last", torch::nn::Linear(9, 1))) {}
  at::Tensor loss_of(const at::Tensor& x) {
    const at::Tensor y = norm(first(x)) + (first(x) - norm->running_mean) / norm->running_var;
    return last(y.tanh()).square().mean();
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

struct UnitNet : nn::Unit {
  UnitNet() : net(register_module("net", std::make_shared<Net>())) {}
  at::Tensor loss_of(const at::Tensor& inputs) {
    return run([&] { return net->loss_of(inputs); });
  }
  std::shared_ptr<Net> net;
};

at::Tensor batch_of(int rank, int number) {
  at::manual_seed(static_cast<std::uint64_t>(100 * number + rank));
  return at::randn({5, 7}) + rank;
}

template <typename Model>
struct Trainee {
  Trainee(dist::Communicator& communicator, const EngineConfig& config)
      : communicator(communicator), engine(model, communicator, optim::adamw(kAdamW), config) {}
  static Model made() {
    at::manual_seed(7);
    return Model();
  }
  at::Tensor forward(const at::Tensor& batch) {
    return engine.forward([&] { return model.loss_of(batch); });
  }
  void steps(int first, int last) {
    for (int number = first; number < last; ++number) {
      engine.backward(forward(batch_of(communicator.rank(), number)));
      engine.step();
    }
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  static constexpr optim::AdamWOptions kAdamW{.learning_rate = 0.05};
  dist::Communicator& communicator;
  Model model = made();
  Engine engine;
};

// The program does it, at stage 0.
void step_by_hand(Trainee<Net>& run, int number) {
  for (const at::Tensor& buffer : run.model.buffers()) {
    run.communicator.broadcast(buffer, 0, dist::Purpose::kParameter).wait();
  }
  run.steps(number, number + 1);
}

ZERO_TESTS_ON_RANKS(BroadcastBuffers, 1, 2, 3);

TEST_P(BroadcastBuffers, AreThoseOfRank0BeforeEachForwardThatTrains) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Trainee<Net> by_hand(communicator, {.stage = 0});
    for (int number = 0; number < 3; ++number) step_by_hand(by_hand, number);
    const EngineConfig with{.stage = stage, .broadcast_buffers = true};
    Trainee<Net> plain(communicator, with);
    Trainee<UnitNet> units(communicator, with);
    Trainee<Net> without(communicator, {.stage = stage});
    plain.steps(0, 3);
    units.steps(0, 3);
    without.steps(0, 3);
    const std::vector<at::Tensor> weights = by_hand.weights(), buffers = by_hand.model.buffers();
    EXPECT_TRUE(same_bits(plain.weights(), weights));
    EXPECT_TRUE(same_bits(units.weights(), weights));
    EXPECT_TRUE(same_bits(plain.model.buffers(), buffers));
    EXPECT_TRUE(same_bits(units.model.buffers(), buffers));
    const bool alone = communicator.size() == 1;
    EXPECT_EQ(static_cast<bool>(same_bits(without.weights(), weights)), alone);
  });
}

TEST(BroadcastBuffersInFlight, AreAllSentBeforeOneIsWaitedFor) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Trainee<Net> run(communicator, {.stage = 0, .broadcast_buffers = true});
    std::vector<bool> waits;
    const Hooked hooked(communicator, [&](dist::Operation operation, dist::Purpose, bool waiting) {
      if (operation == dist::Operation::kBroadcast) waits.push_back(waiting);
    });
    run.forward(batch_of(communicator.rank(), 0));
    EXPECT_EQ(waits, (std::vector{false, false, false, true, true, true}));
  });
}

TEST_P(BroadcastBuffers, StayAsTheyAreInAnEvaluation) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    Trainee<Net> run(communicator, {.stage = 3, .broadcast_buffers = true});
    run.steps(0, 1);
    const at::Tensor mean = run.model.norm->running_mean.clone();
    run.model.eval();
    run.engine.evaluate([&] { return run.model.loss_of(batch_of(0, 9)); });
    EXPECT_TRUE(at::equal(run.model.norm->running_mean, mean));
  });
}

TEST_P(BroadcastBuffers, ResumeOnAllRanksAsIfNeverStopped) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    Trainee<Net> saves(communicator, {.stage = 3, .broadcast_buffers = true});
    saves.steps(0, 2);
    saves.engine.save(folder.path());
    saves.steps(2, 4);
    Trainee<Net> loads(communicator, {.stage = 1, .broadcast_buffers = true});
    EXPECT_TRUE(loads.engine.load(folder.path()));
    loads.steps(2, 4);
    EXPECT_TRUE(same_bits(loads.weights(), saves.weights()));
    EXPECT_TRUE(same_bits(loads.model.buffers(), saves.model.buffers()));
  });
}

}  // namespace
}  // namespace zero::testing
