// The weights of a plain module by name, and a module that gets them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <numeric>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/defer.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using safetensors::NamedTensors;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(PlainStateDict, 1, 2, 3);

// Parameters and buffers of the module itself, in its order.
NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& p : module.named_parameters()) all.emplace_back(p.key(), p.value());
  for (const auto& b : module.named_buffers()) all.emplace_back(b.key(), b.value());
  return all;
}

NamedTensors of_module(const torch::nn::Module& module) {
  NamedTensors all = tensors_of(module);
  for (auto& [name, tensor] : all) tensor = tensor.clone();
  return all;
}

::testing::AssertionResult same(const NamedTensors& a, const NamedTensors& b) {
  std::vector<at::Tensor> of_a, of_b;
  for (const auto& [name, tensor] : a) of_a.push_back(tensor);
  for (const auto& [name, tensor] : b) of_b.push_back(tensor);
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].first != b[i].first) {
      return ::testing::AssertionFailure() << a[i].first << " and " << b[i].first;
    }
  }
  return same_bits(of_a, of_b);
}

TEST_P(PlainStateDict, IsWhatTheModuleHasWhenItIsGivenBack) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const char* name : {"resnet", "lstm", "frozen"}) {
      SCOPED_TRACE(name);
      PlainRun run(communicator, name, at_stage(stage));
      run.step(0);
      const NamedTensors first = io::state_dict(run.engine.strategy());
      const NamedTensors all = io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks);
      EXPECT_EQ(first.empty(), communicator.rank() != 0);
      run.engine.release();
      if (communicator.rank() == 0) {
        EXPECT_TRUE(same(first, of_module(*run.made.module)));
      }
      EXPECT_TRUE(same(all, of_module(*run.made.module)));
    }
  });
}

TEST_P(PlainStateDict, IsThatOfTheLastStepBetweenBackwardAndStep) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "gpt2", at_stage(stage)), other(communicator, "gpt2", at_stage(0));
    run.step(0);
    const NamedTensors before = io::state_dict(run.engine.strategy());
    at::manual_seed(100 + communicator.rank());
    run.engine.backward(run.engine.forward(run.made.loss));
    EXPECT_TRUE(same(io::state_dict(run.engine.strategy()), before));
    run.engine.step();
    other.step(0);
    other.step(1);
    EXPECT_TRUE(same_bits(run.weights(), other.weights()));  // the step is what it would have been
  });
}

TEST_P(PlainStateDict, ShardsOfAllRanksAreTheWhole) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "resnet", at_stage(stage));
    run.step(0);
    const auto mine = io::shards_of_state_dict(run.engine.strategy());
    std::size_t of_others = 0;  // elements of which this rank keeps nothing
    for (const auto& [name, whole] :
         io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks)) {
      const auto found = mine.find(name);
      const std::int64_t begin = found == mine.end() ? 0 : found->second.begin;
      const std::int64_t size = found == mine.end() ? 0 : found->second.tensor.numel();
      if (size > 0) {
        EXPECT_TRUE(
            at::equal(found->second.tensor.flatten(), whole.flatten().narrow(0, begin, size)));
      }
      const std::vector<double> all =
          dist::all_gather_scalars(communicator, {static_cast<double>(size)});
      const double sum = std::accumulate(all.begin(), all.end(), 0.0);
      const bool is_buffer = name.find("running") != std::string::npos ||
                             name.find("num_batches") != std::string::npos;
      const int copies = stage == 3 && !is_buffer ? 1 : communicator.size();
      EXPECT_EQ(sum, static_cast<double>(copies * whole.numel())) << name;
      of_others += static_cast<std::size_t>(whole.numel() - size);
    }
    EXPECT_EQ(of_others > 0, stage == 3 && communicator.size() > 1);
  });
}

// Six units as large, and nothing else.
struct Deep : torch::nn::Module {
  static constexpr std::int64_t kWidth = 300;
  Deep() {
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
  }
  torch::nn::ModuleList layers;
};

TEST(PlainStateDictOnRank0, OtherRanksHoldOneUnitMoreThanTheyOwn) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Deep net;
    Engine engine(net, communicator, optim::adamw(), at_stage(3));
    const std::int64_t unit = 4 * Deep::kWidth * (Deep::kWidth + 1);
    const std::int64_t before = memory::snapshot().total;
    memory::reset_peaks();
    const NamedTensors dict = io::state_dict(engine.strategy());
    const std::int64_t peak = memory::snapshot().total_peak;
    const std::int64_t kept = communicator.rank() == 0 ? 6 * unit : 0;
    EXPECT_NEAR(static_cast<double>(peak - before), static_cast<double>(kept + unit), unit / 10.);
    EXPECT_GE(memory::snapshot().total, before + kept);
    memory::reset_peaks();
    engine.load_weights(dict);
    const auto loading = static_cast<double>(memory::snapshot().total_peak - before - kept);
    // 8 bytes an element of a parameter while what was written is added up.
    EXPECT_LT(loading, 3.1 * static_cast<double>(unit));
  });
}

TEST_P(PlainStateDict, OfOneStageGoesIntoAnotherAndIntoAModuleAlone) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun trained(communicator, "resnet", at_stage(3 - stage));
    trained.step(0);
    const NamedTensors dict = io::state_dict(trained.engine.strategy());
    PlainRun by_dict(communicator, "resnet", at_stage(stage));
    PlainRun by_file(communicator, "resnet", at_stage(stage));
    for (PlainRun* run : {&by_dict, &by_file}) run->step(5);
    by_dict.engine.load_weights(dict);
    if (communicator.rank() == 0) safetensors::save(folder / "model.safetensors", dict);
    by_file.engine.load_weights(folder / "model.safetensors");
    for (PlainRun* run : {&by_dict, &by_file}) {
      const NamedTensors loaded = io::state_dict(run->engine.strategy(), io::WholeOn::kAllRanks);
      if (communicator.rank() == 0) {
        EXPECT_TRUE(same(loaded, dict));
      }
    }
    by_dict.step(6);  // with the moments of its own step
    by_file.step(6);
    EXPECT_TRUE(same_bits(by_dict.weights(), by_file.weights()));
  });
}

// The weights, and a loss of old weights, are what they would be if the module were alone.
TEST(PlainStateDictOnOneRank, LoadedWeightsTrainOnAsInAModuleAlone) {
  on_all_stages(1, [](dist::Communicator& communicator, int stage) {
    at::manual_seed(99);
    const PlainModule alone = plain_case("gpt2").make();
    PlainRun run(communicator, "gpt2", at_stage(stage));
    run.engine.load_weights(of_module(*alone.module));
    expect_trains_as_alone(run, alone, /*steps=*/2);
  });
}

TEST_P(PlainStateDict, WithOtherNamesOrShapesIsRefusedOnAllRanks) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "resnet", at_stage(stage));
    run.step(0);
    const std::vector<at::Tensor> before = run.weights();
    const NamedTensors right = io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks);
    NamedTensors wrong = right;
    wrong[1].first = "stem.wieght";  // one is missing and one too many
    wrong[0].second = wrong[0].second.flatten();
    wrong[2].second = wrong[2].second.to(at::kComplexFloat);
    wrong.push_back(wrong[3]);
    const std::vector<std::string> expected = {
        "\"stem.wieght\" is none of the model's",    "\"" + right[1].first + "\" is missing",
        "\"" + right[0].first + "\" has the shape",  "\"" + right[2].first + "\" is complex64",
        "\"" + right[3].first + "\" is there twice", "rank 0"};
    expect_error([&] { run.engine.load_weights(wrong); }, expected);
    // What rank 0 passes counts.
    expect_error([&] { run.engine.load_weights(communicator.rank() == 0 ? wrong : right); },
                 expected);
    expect_error([&] { run.engine.load_weights(NamedTensors()); }, {"is missing", "more"});
    expect_error([&] { run.engine.load_weights(folder / "none"); }, {"none", "rank 0"});
    wrong = right;
    wrong.pop_back();
    if (communicator.rank() == 0) safetensors::save(folder / "lacks.safetensors", wrong);
    expect_error([&] { run.engine.load_weights(folder / "lacks.safetensors"); },
                 {"lacks.safetensors", right.back().first, "is missing"});
    EXPECT_TRUE(same_bits(run.weights(), before));
  });
}

// Nothing is changed, whatever it is on rank 0 that has no values.
TEST_P(PlainStateDict, WithoutValuesOnRank0IsRefusedOnAllRanks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "resnet", at_stage(stage));
    run.step(0);
    const std::vector<at::Tensor> before = run.weights();
    const NamedTensors right = io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks);
    const at::Tensor& values = right[1].second;
    for (const at::Tensor& wrong :
         {at::Tensor(), values.to(at::kMeta), values.to_sparse(),
          memory::without_storage(values.sizes(), values.scalar_type())}) {
      NamedTensors weights = right;
      weights[1].second = wrong;
      expect_error([&] { run.engine.load_weights(weights); },
                   {"rank 0", "tensor \"" + right[1].first + "\": it "});
    }
    const auto deferred = nn::defer([] { return PlainRun::make("resnet").module; });
    expect_error([&] { run.engine.load_weights(tensors_of(*deferred)); },
                 {right[0].first, "state_dict()"});
    PlainRun teacher(communicator, "resnet", at_stage(3));
    expect_error([&] { run.engine.load_weights(tensors_of(*teacher.made.module)); },
                 {right[0].first, "state_dict()"});
    EXPECT_TRUE(same_bits(run.weights(), before));
    EXPECT_TRUE(run.step(1));
    run.engine.load_weights(io::state_dict(teacher.engine.strategy()));
    EXPECT_TRUE(same_bits(run.weights(), teacher.weights()));
  });
}

struct Switched : torch::nn::Module {
  Switched() {
    at::manual_seed(7);
    linear = register_module("linear", torch::nn::Linear(5, 3));
    is_on = register_buffer("is_on", at::ones({2}, at::kBool));
  }
  at::Tensor loss() { return linear(at::randn({4, 5})).square().mean(); }
  torch::nn::Linear linear{nullptr};
  at::Tensor is_on;
};

// What is in a file shows only when it is read: by then other weights are overwritten.
TEST_P(PlainStateDict, ThatEndsHalfWayIsOfNoUseUntilACheckpointIsLoaded) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    Switched net;
    Engine engine(net, communicator, optim::adamw(), at_stage(stage));
    const auto step = [&] {
      const at::Tensor loss = engine.forward([&] { return net.loss(); });
      engine.backward(loss);
      return engine.step();
    };
    step();
    const std::string run = "run" + std::to_string(stage), bad = "bad" + std::to_string(stage);
    engine.save(folder / run);
    const std::vector<at::Tensor> before = whole_weights(engine.strategy());
    const NamedTensors dict = io::state_dict(engine.strategy());
    if (communicator.rank() == 0) {
      safetensors::save(folder / bad, dict);
      std::string bytes = read_bytes(folder / bad);
      bytes.back() = 7;  // the buffer's, which must be 0 or 1
      std::ofstream(folder / bad, std::ios::binary) << bytes;
    }
    const std::vector<std::string> says = {"discard the model", "rank 0", "BOOL"};
    expect_error([&] { engine.load_weights(folder / bad); }, says);
    expect_error(step, says);
    expect_error([&] { engine.evaluate([&] { return net.loss(); }); }, says);
    expect_error([&] { engine.load_weights(dict); }, {"the weights cannot be loaded", says[0]});
    expect_error([&] { io::state_dict(engine.strategy()); }, says);
    EXPECT_TRUE(engine.load(folder / run));
    EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), before));
    EXPECT_TRUE(step());
    engine.load_weights(dict);
    EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), before));
  });
}

TEST_P(PlainStateDict, IsNotLoadedInTheMiddleOfAStepNorOnOneRankOnly) {
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "gpt2", at_stage(stage));
    const NamedTensors dict = io::state_dict(run.engine.strategy());
    run.engine.backward(run.engine.forward(run.made.loss));
    expect_error([&] { run.engine.load_weights(dict); },
                 {"load_weights() in the middle of a step"});
    run.engine.step();
    const at::Tensor loss = run.engine.forward(run.made.loss);
    run.engine.load_weights(dict);
    expect_error([&] { run.engine.backward(loss); }, {"forward() again"});
    const bool first = communicator.rank() == 0;
    if (communicator.size() == 1) return;
    expect_error(
        [&] {
          io::state_dict(run.engine.strategy(),
                         first ? io::WholeOn::kAllRanks : io::WholeOn::kFirstRank);
        },
        {"who gets the state dict"});
  });
}

TEST(PlainStateDictCall, OnOneRankOnlyIsAnErrorOnAll) {
  RankOptions options;
  options.timeout = std::chrono::seconds(5);
  for (const bool loads : {false, true}) {
    const auto exits = ranks_ended(options, [&](dist::Communicator& communicator) {
      PlainRun run(communicator, "gpt2", at_stage(3));
      const NamedTensors dict = io::state_dict(run.engine.strategy());
      if (communicator.rank() == 0) {
        run.step(0);
      } else {
        loads ? run.engine.load_weights(dict) : void(io::state_dict(run.engine.strategy()));
      }
    });
    expect_errors(exits, ::testing::AllOf(HasSubstr(loads ? "io::load_weights" : "io::state_dict"),
                                          HasSubstr("Engine::forward")));
  }
}

}  // namespace
}  // namespace zero::testing
