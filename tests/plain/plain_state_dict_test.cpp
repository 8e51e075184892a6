// When the weights of a module may be read and given by name, and what is refused. What they are
// under every strategy is in tests/checkpoint/saved_weights_test.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
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

TEST_P(PlainStateDict, IsThatOfTheLastStepBetweenBackwardAndStep) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "gpt2", at_stage(stage)), other(communicator, "gpt2", at_stage(0));
    run.step(0);
    const std::vector<at::Tensor> before = run.weights();
    run.backward(1);
    const NamedTensors dict = io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks);
    std::vector<at::Tensor> now;
    for (const auto& [name, tensor] : dict) now.push_back(tensor);
    EXPECT_TRUE(same_bits(now, before));
    run.engine.step();
    other.step(0);
    other.step(1);
    EXPECT_TRUE(same_bits(run.weights(), other.weights()));  // the step is what it would have been
  });
}

// Six units as large, and nothing else.
struct Deep : torch::nn::Module {
  static constexpr std::int64_t kWidth = 300;
  Deep() {
    torch::nn::ModuleList layers;
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
  }
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

TEST_P(PlainStateDict, ThatDoesNotFitOrHasNoValuesOnRank0IsRefusedOnAllRanks) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "resnet", at_stage(stage)),
        teacher(communicator, "resnet", at_stage(3));
    run.step(0);
    const std::vector<at::Tensor> before = run.weights();
    const NamedTensors right = io::state_dict(run.engine.strategy(), io::WholeOn::kAllRanks);
    const std::string& second = right[1].first;
    const auto expect_refused = [&](const auto& weights, const std::vector<std::string>& says) {
      expect_error([&] { run.engine.load_weights(weights); }, says);
    };
    NamedTensors wrong = right;
    wrong[1].first = "stem.wieght";  // one is missing and one too many
    wrong[0].second = wrong[0].second.flatten();
    wrong[2].second = wrong[2].second.to(at::kComplexFloat);
    wrong.push_back(wrong[3]);
    const std::vector<std::string> all_of_it = {
        "\"stem.wieght\" is none of the model's",    "\"" + second + "\" is missing",
        "\"" + right[0].first + "\" has the shape",  "\"" + right[2].first + "\" is complex64",
        "\"" + right[3].first + "\" is there twice", "rank 0"};
    expect_refused(wrong, all_of_it);
    expect_refused(communicator.rank() == 0 ? wrong : right, all_of_it);  // rank 0's count
    expect_refused(NamedTensors(), {"is missing", "more"});
    expect_refused(folder / "none", {"none", "rank 0"});
    wrong = right;
    wrong.pop_back();
    if (communicator.rank() == 0) safetensors::save(folder / "lacks.safetensors", wrong);
    expect_refused(folder / "lacks.safetensors",
                   {"lacks.safetensors", right.back().first, "is missing"});
    // Whatever it is that has no values.
    const at::Tensor& values = right[1].second;
    for (const at::Tensor& none : {at::Tensor(), values.to(at::kMeta), values.to_sparse(),
                                   memory::without_storage(values.sizes(), values.scalar_type())}) {
      wrong = right;
      wrong[1].second = none;
      expect_refused(wrong, {"rank 0", "tensor \"" + second + "\": it "});
    }
    const auto deferred = nn::defer([] { return PlainRun::make("resnet").module; });
    for (const torch::nn::Module* module : {deferred.get(), teacher.made.module.get()}) {
      expect_refused(tensors_of(*module), {right[0].first, "state_dict()"});
    }
    EXPECT_TRUE(same_bits(run.weights(), before));
    EXPECT_TRUE(run.step(1));
    run.engine.load_weights(io::state_dict(teacher.engine.strategy()));
    EXPECT_TRUE(same_bits(run.weights(), teacher.weights()));
  });
}

PlainModule with_a_switch() {
  at::manual_seed(7);
  const auto net = std::make_shared<torch::nn::Module>();
  const auto linear = net->register_module("linear", torch::nn::Linear(5, 3));
  net->register_buffer("is_on", at::ones({2}, at::kBool));
  return {net, [net, linear] { return linear->forward(at::randn({4, 5})).square().mean(); }};
}

// What is in a file shows only when it is read: by then other weights are overwritten.
TEST_P(PlainStateDict, ThatEndsHalfWayIsOfNoUseUntilACheckpointIsLoaded) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, with_a_switch(), at_stage(stage));
    run.step(0);
    const std::string good = "run" + std::to_string(stage), bad = "bad" + std::to_string(stage);
    run.engine.save(folder / good);
    const std::vector<at::Tensor> before = run.weights();
    const NamedTensors dict = io::state_dict(run.engine.strategy());
    if (communicator.rank() == 0) {
      safetensors::save(folder / bad, dict);
      std::string bytes = read_bytes(folder / bad);
      bytes.back() = 7;  // the buffer's, which must be 0 or 1
      folder.write(bad, bytes);
    }
    const std::vector<std::string> says = {"discard the model", "rank 0", "BOOL"};
    expect_error([&] { run.engine.load_weights(folder / bad); }, says);
    expect_error([&] { run.step(1); }, says);
    expect_error([&] { run.engine.evaluate(run.made.loss); }, says);
    expect_error([&] { run.engine.load_weights(dict); }, {"the weights cannot be loaded", says[0]});
    expect_error([&] { io::state_dict(run.engine.strategy()); }, says);
    EXPECT_TRUE(run.engine.load(folder / good));
    EXPECT_TRUE(same_bits(run.weights(), before));
    EXPECT_TRUE(run.step(1));
    run.engine.load_weights(dict);
    EXPECT_TRUE(same_bits(run.weights(), before));
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

}  // namespace
}  // namespace zero::testing
