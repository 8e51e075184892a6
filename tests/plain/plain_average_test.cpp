// The average of the weights that optim::with_weight_average() keeps, over a plain module.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/weight_average.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(PlainAverage, 1, 2, 3, 4);

constexpr double kDecay = 0.9;

optim::OptimizerFactory averaging(const optim::OptimizerFactory& inner = wrapped_adamw) {
  return optim::with_weight_average(inner, kDecay);
}

PlainRun averaging_run(dist::Communicator& communicator, const std::string& name, int stage) {
  return {communicator, name, {.overlap = {.stage = stage}}, averaging()};
}

// The average of whole weights, as a loop without this library has it.
void average(std::vector<at::Tensor>& average, const std::vector<at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    average[i].add_(weights[i].sub(average[i]).mul_(1 - kDecay));
  }
}

std::vector<at::Tensor> averaged(PlainRun& run) {
  std::vector<at::Tensor> shown;
  run.engine.with_averaged_weights([&] { shown = run.weights(); });
  return shown;
}

TEST_P(PlainAverage, IsThatOfTheWholeWeights) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const char* name : {"gpt2", "frozen", "resnet"}) {
      SCOPED_TRACE(name);
      PlainRun run = averaging_run(communicator, name, stage);
      std::vector<at::Tensor> expected = run.weights();
      EXPECT_TRUE(same_bits(averaged(run), expected));  // before the first update
      for (int number = 0; number < 4; ++number) {
        run.step(number);
        average(expected, run.weights());
        EXPECT_TRUE(same_bits(averaged(run), expected));
      }
      EXPECT_FALSE(same_bits(run.weights(), expected));
    }
  });
}

// Nor does it change what training sends.
TEST_P(PlainAverage, ChangesNothingOfTheTraining) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun without(communicator, "gpt2", {.overlap = {.stage = stage}});
    PlainRun with = averaging_run(communicator, "gpt2", stage);
    const auto sent = [&](PlainRun& run, int number) {
      const auto before = communicator.traffic().bytes();
      run.step(number);
      return communicator.traffic().bytes() - before;
    };
    for (int number = 0; number < 4; ++number) {
      EXPECT_EQ(sent(without, number), sent(with, number));
      with.engine.with_averaged_weights([&] { with.engine.evaluate(with.made.loss); });
      EXPECT_TRUE(same_bits(with.weights(), without.weights()));
    }
  });
}

TEST_P(PlainAverage, IsWhatAFunctionEvaluates) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run = averaging_run(communicator, "gpt2", stage);
    PlainRun other(communicator, "gpt2", {.overlap = {.stage = 0}});
    for (int number = 0; number < 3; ++number) run.step(number);
    safetensors::NamedTensors dict;
    at::Tensor loss;
    run.engine.evaluate(run.made.loss);  // leaves units whole
    run.engine.with_averaged_weights([&] {
      at::manual_seed(8);
      loss = run.engine.evaluate(run.made.loss);
      dict = io::state_dict(run.engine.strategy());
    });
    other.engine.load_weights(dict);
    at::manual_seed(8);
    EXPECT_TRUE(at::equal(other.engine.evaluate(other.made.loss), loss));
    at::manual_seed(8);
    EXPECT_FALSE(at::equal(run.engine.evaluate(run.made.loss), loss));
  });
}

TEST_P(PlainAverage, IsSavedAndGoesOnAtAnotherStageAndNumberOfRanks) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun saves = averaging_run(communicator, "gpt2", stage);
    saves.step(0);
    saves.step(1);
    const std::filesystem::path place = folder / std::to_string(stage);
    saves.engine.save(place);
    const std::vector<at::Tensor> expected = averaged(saves);
    saves.step(2);
    PlainRun loads = averaging_run(communicator, "gpt2", 3 - stage);
    EXPECT_TRUE(loads.engine.load(place));
    EXPECT_TRUE(same_bits(averaged(loads), expected));
    loads.step(2);
    EXPECT_TRUE(same_bits(averaged(loads), averaged(saves)));
    if (communicator.rank() == 0) {
      safetensors::save(folder / (std::to_string(stage) + ".safetensors"), [&] {
        safetensors::NamedTensors tensors;
        for (const at::Tensor& t : expected)
          tensors.emplace_back(std::to_string(tensors.size()), t);
        return tensors;
      }());
    }
    PlainRun without(communicator, "gpt2", {.overlap = {.stage = stage}});
    expect_error([&] { without.engine.load(place); }, {"AdamW with average"});
  });
  on_all_stages(GetParam() % 3 + 1, [&](dist::Communicator& communicator, int stage) {
    PlainRun loads = averaging_run(communicator, "gpt2", stage);
    EXPECT_TRUE(loads.engine.load(folder / std::to_string(stage)));
    const safetensors::File file(folder / (std::to_string(stage) + ".safetensors"));
    const std::vector<at::Tensor> shown = averaged(loads);
    for (std::size_t i = 0; i < shown.size(); ++i) {
      EXPECT_TRUE(at::equal(shown[i], file.read(std::to_string(i))));
    }
  });
}

// A checkpoint of one step that is cut short in the file of one rank.
TEST_P(PlainAverage, IsAsBeforeAfterACheckpointThatWasRefused) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run = averaging_run(communicator, "gpt2", stage);
    run.step(0);
    const std::filesystem::path place = folder / std::to_string(stage);
    run.engine.save(place);
    run.step(1);
    const std::vector<at::Tensor> weights = run.weights(), average = averaged(run);
    if (communicator.rank() == 0) {
      const auto file = place / "step-000000001" /
                        fmt::format("rank-00000-of-{:05}.safetensors", communicator.size());
      std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
    }
    communicator.barrier();
    expect_error([&] { run.engine.load(place); }, {"it was cut short"});
    EXPECT_TRUE(same_bits(averaged(run), average));
    EXPECT_TRUE(same_bits(run.weights(), weights));
  });
}

// Takes no states back while it `refuses`.
class RefusesStates final : public HookedOptimizer {
 public:
  RefusesStates(std::unique_ptr<optim::Optimizer> inner, const bool& refuses)
      : HookedOptimizer(std::move(inner), [] {}), refuses_(refuses) {}
  Settings settings() const override { return inner_->settings(); }
  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    if (refuses_) throw Error("no room for states");
    inner_->load_state(parameter, steps, states);
  }

 private:
  const bool& refuses_;
};

// The last rank has weights of the checkpoint and no average yet, and the others have both.
TEST_P(PlainAverage, IsNotShownWhileTheModelIsPartlyLoaded) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun saves = averaging_run(communicator, "gpt2", stage);
    saves.step(0);
    const std::filesystem::path place = folder / std::to_string(stage);
    saves.engine.save(place);
    const int last = communicator.size() - 1;
    bool refuses = communicator.rank() == last;
    const auto adamw = averaging([&refuses](const std::vector<at::Tensor>& parameters) {
      return std::make_unique<RefusesStates>(wrapped_adamw(parameters), refuses);
    });
    PlainRun loads(communicator, "gpt2", {.overlap = {.stage = stage}}, adamw);
    const std::vector<std::string> what = {
        fmt::format("the model is partly loaded, load another: rank {}: no room for states", last)};
    expect_error([&] { loads.engine.load(place); }, what);
    bool is_shown = false;
    expect_error([&] { loads.engine.with_averaged_weights([&] { is_shown = true; }); }, what);
    EXPECT_FALSE(is_shown);
    refuses = false;
    EXPECT_TRUE(loads.engine.load(place));
    EXPECT_TRUE(same_bits(averaged(loads), averaged(saves)));
  });
}

TEST_P(PlainAverage, IsNotTrainedSavedOrShownInTheMiddleOfAStep) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run = averaging_run(communicator, "gpt2", stage);
    run.step(0);
    const std::vector<at::Tensor> weights = run.weights();
    const std::vector<at::Tensor> average = averaged(run);
    Engine& engine = run.engine;
    const safetensors::NamedTensors dict = io::state_dict(engine.strategy());
    const std::vector<std::pair<std::string, std::function<void()>>> wrong = {
        {"backward", [&] { engine.backward(engine.forward(run.made.loss)); }},
        {"save", [&] { engine.save(folder / "run"); }},
        {"load", [&] { engine.load(folder / "run"); }},
        {"load_weights", [&] { engine.load_weights(dict); }},
        {"release", [&] { engine.release(); }},
        {"with_averaged_weights", [&] { engine.with_averaged_weights([] {}); }}};
    for (const auto& [call, function] : wrong) {
      expect_error([&] { engine.with_averaged_weights(function); },
                   {call + "() in with_averaged_weights()", "rank 0"});
    }
    const int last = communicator.size() - 1;
    expect_error(
        [&] {
          engine.with_averaged_weights([&] {
            if (communicator.rank() == last) throw std::runtime_error("no such file");
          });
        },
        {"rank " + std::to_string(last), "no such file"});
    const at::Tensor old = engine.forward(run.made.loss);
    EXPECT_TRUE(same_bits(averaged(run), average));
    expect_error([&] { engine.backward(old); }, {"forward() again"});
    engine.backward(engine.forward(run.made.loss));
    expect_error([&] { engine.with_averaged_weights([] {}); }, {"in the middle of a step"});
    engine.give_up_step();
    EXPECT_TRUE(same_bits(run.weights(), weights));
    EXPECT_TRUE(same_bits(averaged(run), average));
  });
}

TEST(PlainAverageOptions, AreRefusedByName) {
  for (const double decay : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error([&] { optim::with_weight_average(wrapped_adamw, decay); }, {"decay", "below 1"});
  }
  const at::Tensor half = at::zeros({3}, at::kBFloat16).requires_grad_(true);
  const auto outside = optim::with_master_weights(averaging());
  expect_error([&] { outside({half}); }, {"goes around with_master_weights()"});
  on_ranks(2, [](dist::Communicator& communicator) {
    PlainRun without(communicator, "gpt2", {.overlap = {.stage = 2}});
    expect_error([&] { without.engine.with_averaged_weights([] {}); }, {"with_weight_average()"});
    PlainRun other(communicator, "gpt2", {.overlap = {.stage = 1}},
                   optim::with_weight_average(wrapped_adamw, 0.5 + 0.1 * communicator.rank()));
    expect_error([&] { other.step(0); }, {"average_decay"});
  });
}

}  // namespace
}  // namespace zero::testing
