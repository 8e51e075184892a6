// Updates that the host makes while the next step is computed (offload_delay_after). The measure is
// one process with the same delay: the gradients of all ranks averaged in rank order, and each used
// one step later than it was made.

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

EngineConfig late_after(std::int64_t updates, int stage, const std::string& offload = "host") {
  EngineConfig config;
  config.overlap.stage = stage;
  config.overlap.offload = offload;
  config.overlap.offload_tile_bytes = 4096;
  config.overlap.offload_delay_after = updates;
  return config;
}

// All batches in one process.
class OneProcess {
 public:
  OneProcess(int ranks, int at_once) : ranks_(ranks), at_once_(at_once) {
    nn::initialize_parameters(*toy_.model, toy_.values);
    parameters_ = parameters_of(*toy_.model);
    optimizer_ = optim::adamw()(parameters_);
  }

  // Returns the losses of all ranks.
  std::vector<float> step(int number) {
    std::vector<float> losses;
    std::vector<at::Tensor> sums(parameters_.size());
    for (int rank = 0; rank < ranks_; ++rank) {
      const at::Tensor loss = toy_.model->loss(toy_.batch(rank, number));
      losses.push_back(loss.item<float>());
      loss.backward();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor mine = std::exchange(parameters_[i].mutable_grad(), at::Tensor());
        sums[i] = sums[i].defined() ? sums[i] + mine : mine;
      }
    }
    for (at::Tensor& sum : sums) sum = sum / ranks_;
    if (made_++ < at_once_) {
      update(sums);
    } else {
      finish();
      waits_ = sums;
    }
    return losses;
  }
  void finish() {
    if (!waits_.empty()) update(std::exchange(waits_, {}));
  }
  const std::vector<at::Tensor>& weights() const { return parameters_; }

 private:
  void update(const std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      parameters_[i].mutable_grad() = gradients[i];
    }
    optimizer_->step();
    for (at::Tensor& p : parameters_) p.mutable_grad().reset();
  }

  int ranks_;
  int at_once_;  // updates that are not late
  int made_ = 0;
  Toy toy_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<at::Tensor> waits_;
};

float loss_of_step(EngineRun& run, int number) {
  const at::Tensor loss = run.forward(number);
  run.engine.backward(loss);
  EXPECT_TRUE(run.engine.step());
  return loss.item<float>();
}

// Of a batch of its own; changes nothing.
float probe(EngineRun& run) {
  const at::NoGradGuard no_grad;
  return run.forward(99).item<float>();
}

ZERO_TESTS_ON_RANKS(DelayedUpdate, 1, 2, 3, 4);

// Each loss shows the weights of its step.
TEST_P(DelayedUpdate, HasTheBitsOfOneProcessWithTheSameDelay) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const std::string& offload : {std::string("host"), folder.path().string()}) {
      for (const int at_once : {0, 2}) {
        SCOPED_TRACE(fmt::format("{} after {}", offload, at_once));
        OneProcess alone(communicator.size(), at_once);
        EngineRun run(communicator, late_after(at_once, stage, offload));
        for (int number = 0; number < 6; ++number) {
          const std::vector<float> losses = alone.step(number);
          EXPECT_EQ(loss_of_step(run, number), losses[static_cast<std::size_t>(run.rank)]);
        }
        alone.finish();
        EXPECT_TRUE(same_bits(run.weights(), alone.weights()));
        // What has been read is used, and the next one waits again.
        for (int number = 6; number < 9; ++number) {
          const std::vector<float> losses = alone.step(number);
          EXPECT_EQ(loss_of_step(run, number), losses[static_cast<std::size_t>(run.rank)]);
        }
        alone.finish();
        EXPECT_TRUE(same_bits(run.weights(), alone.weights()));
        EngineRun plain(communicator, {.overlap = {.stage = stage}});
        plain.steps(0, 9);
        EXPECT_FALSE(same_bits(run.weights(), plain.weights()));
      }
    }
  });
}

TEST_P(DelayedUpdate, BeginsAfterTheFirstUpdatesWithAStepThatChangesNothing) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, late_after(3, stage));
    EngineRun plain(communicator, {.overlap = {.stage = stage}});
    for (int number = 0; number < 3; ++number) {
      run.step(number);
      plain.step(number);
      EXPECT_EQ(probe(run), probe(plain));
    }
    run.step(3);
    EXPECT_EQ(probe(run), probe(plain)) << "weight decay and moments move weights, too";
    run.step(4);
    plain.step(3);
    EXPECT_EQ(probe(run), probe(plain)) << "the gradient of step 3, at the same weights";
    run.step(5);
    plain.step(4);
    EXPECT_NE(probe(run), probe(plain)) << "that of step 4 was made at older weights";
  });
}

// With masters, clipping, micro-batches, and a step that is left out.
TEST_P(DelayedUpdate, HasTheSameBitsAtEveryStage) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    WholeState first;
    for (const std::string& offload : {std::string("host"), folder.path().string()}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("stage {} {}", stage, offload));
        EngineConfig config = late_after(1, stage, offload);
        config.accumulation_steps = 2;
        config.clip_norm = 0.05;
        config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
        EngineRun run(communicator, config, optim::with_master_weights(optim::adamw()),
                      at::kBFloat16);
        run.steps(0, 6);
        run.make_gradient_infinite(run.rank == 0);
        run.steps(6, 8);
        run.make_gradient_infinite(false);
        run.steps(8, 12);
        EXPECT_EQ(run.engine.steps(), 5);
        const WholeState state = whole_state(run.engine.strategy());
        if (first.empty()) first = state;
        EXPECT_TRUE(same_state(state, first));
      }
    }
  });
}

TEST_P(DelayedUpdate, ACheckpointHasTheGradientThatWaits) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const bool behind : {false, true}) {
      const auto place = folder / fmt::format("{}{}", stage, behind);
      OneProcess alone(communicator.size(), 1);
      EngineRun saves(communicator, late_after(1, stage));
      for (int number = 0; number < 4; ++number) {
        alone.step(number);
        saves.step(number);
      }
      alone.finish();
      saves.engine.save(place, {.behind = behind});
      EngineRun loads(communicator, late_after(1, 3 - stage));
      loads.steps(5, 8);  // of which one waits, and is forgotten
      saves.engine.finish_save();
      EXPECT_TRUE(loads.engine.load(place));
      EXPECT_TRUE(same_bits(loads.weights(), alone.weights()));
      EngineRun resident(communicator, {.overlap = {.stage = stage}});
      EXPECT_TRUE(resident.engine.load(place));
      EXPECT_TRUE(same_bits(resident.weights(), alone.weights()));
      for (int number = 4; number < 7; ++number) {
        alone.step(number);
        saves.step(number);
        loads.step(number);
      }
      alone.finish();
      EXPECT_TRUE(same_bits(saves.weights(), alone.weights()));
      EXPECT_TRUE(same_bits(loads.weights(), alone.weights()));
    }
  });
}

TEST_P(DelayedUpdate, TheEndHasNoGradientLeft) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    OneProcess alone(communicator.size(), 1);
    EngineRun run(communicator, late_after(1, stage));
    for (int number = 0; number < 3; ++number) {
      alone.step(number);
      run.step(number);
    }
    alone.finish();
    run.engine.release();
    EXPECT_TRUE(same_bits(parameters_of(*run.toy.model), alone.weights()));
  });
}

// Each waits for the other: an update for the backward of the next step to have ended, whose
// gradients it must not use, and that step for the update.
TEST_P(DelayedUpdate, IsMadeWhileTheNextStepIsComputed) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    std::atomic<int> backwards = 0, updates = 0;
    const auto wait_until = [](const std::atomic<int>& count, int least) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (count < least && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_GE(count, least);
    };
    EngineRun run(communicator, late_after(0, stage), hooked(optim::adamw(), [&] {
                    wait_until(backwards, updates + 2);
                    ++updates;
                  }));
    OneProcess alone(communicator.size(), 0);
    for (int number = 0; number < 4; ++number) {
      run.engine.backward(run.forward(number));
      ++backwards;
      wait_until(updates, number);
      EXPECT_TRUE(run.engine.step());
      alone.step(number);
    }
    ++backwards;
    alone.finish();
    EXPECT_TRUE(same_bits(run.weights(), alone.weights()));
  });
}

TEST_P(DelayedUpdate, HoldsTwinsAndTwoGradients) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const memory::Snapshot before = memory::snapshot();
    EngineRun run(communicator, late_after(1, stage));
    run.steps(0, 4);
    const auto formula = run.engine.strategy().costs().at_rest;
    std::int64_t updated = 0;
    for (std::size_t i = 0; i < run.engine.strategy().list().size(); ++i) {
      const at::Tensor mine = run.engine.strategy().piece(i).tensor;
      if (mine.defined()) updated += static_cast<std::int64_t>(mine.nbytes());
    }
    EXPECT_EQ(formula.optimizer, 5 * updated);
    EXPECT_EQ(states_since(before).optimizer, formula.optimizer);
  });
}

TEST_P(DelayedUpdate, FailsOnAllRanksInTheNextStep) {
  if (GetParam() == 1) return;
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    bool fails = false;
    EngineRun run(communicator, late_after(0, stage), hooked(optim::adamw(), [&] {
                    if (fails) throw Error("no more");
                  }));
    run.steps(0, 2);
    run.weights();
    fails = run.rank == 1;
    run.step(2);
    expect_error([&] { run.step(3); }, {"the update failed, load a checkpoint: rank 1: no more"});
    expect_error([&] { run.engine.strategy().finish_update(); },
                 {"the update failed, load a checkpoint: rank 1: no more"});
  });
}

TEST_P(DelayedUpdate, IsRefusedIfParametersAreReadInsideAPass) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    torch::nn::Linear net(3, 3);
    Engine engine(*net, communicator, optim::adamw(), late_after(0, 3));
    expect_error(
        [&] {
          engine.forward([&] {
            const train::UnshardedParameters whole(engine.strategy(), 0);
            return at::Tensor();
          });
        },
        {"UnshardedParameters inside forward() or backward()", "leave out one"});
  });
}

TEST(DelayedUpdateOnAPipelineAxis, IsRefused) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, 2);
    expect_error(
        [&] { PipelineRank(axes, {.mode = "engine1:offload=host:offload_delay_after=0"}); },
        {"a late update (offload_delay_after)", "without a pipeline axis"});
  });
}

TEST_P(DelayedUpdate, RefusesToLoseWhatTheProgramWrites) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    EngineRun run(communicator, late_after(0, 2));
    run.step(0);
    {
      const at::NoGradGuard no_grad;
      run.engine.strategy().list().parameters[0].tensor.mul_(2);
    }
    expect_error([&] { run.step(1); },
                 {"written while its update was late", "UnshardedParameters"});
  });
}

}  // namespace
}  // namespace zero::testing
