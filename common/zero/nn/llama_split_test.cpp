// Llama split over a tensor axis beside the whole model, in double precision.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tools/ladder/data/batch.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using dist::Communicator;
using testing::expect_error;
using testing::on_ranks;

LlamaConfig split_config(std::int64_t classes = 0, bool tied = true) {
  return {.vocabulary = 24,
          .hidden = 10,
          .layers = 2,
          .heads = 8,
          .kv_heads = 4,
          .head_size = 6,
          .mlp = 20,
          .tied = tied,
          .initializer_range = 0.4,
          .classes = classes,
          .dtype = at::kDouble};
}

data::Batch split_text(const LlamaConfig& config) {
  const at::Tensor ids = (at::arange(16).view({2, 8}) * 7 + 3).remainder(config.vocabulary);
  data::Batch batch{.inputs = ids, .targets = (ids * 5 + 1).remainder(config.vocabulary)};
  batch.targets[0][7] = data::kIgnoredTarget;
  batch.loss_terms = 15;
  if (config.classes == 0) return batch;
  batch.targets = testing::longs({1, 2});
  batch.lengths = testing::longs({8, 5});
  batch.loss_terms = 2;
  return batch;
}

// Within 1e-12 of the largest element of `b`.
::testing::AssertionResult within(const at::Tensor& a, const at::Tensor& b) {
  const double largest = b.detach().abs().max().item<double>();
  if (largest == 0) return ::testing::AssertionFailure() << "all zeros";
  return testing::close_to(a.detach() / largest, b.detach() / largest, 1e-12);
}

struct SplitCase {
  LlamaConfig config;
  bool sequence;
  bool checkpoints;
};

void expect_same(Communicator& axis, const SplitCase& c) {
  SeededValues values(4);
  Llama whole(c.config), split(c.config, {axis, c.sequence});
  initialize_parameters(whole, values);
  initialize_parameters(split, values);
  split.checkpoint_activations(c.checkpoints);
  const data::Batch batch = split_text(c.config);
  EXPECT_TRUE(within(split.predict(batch.inputs, batch.lengths),
                     whole.predict(batch.inputs, batch.lengths)));
  const at::Tensor expected = data::loss_of(whole, batch), loss = data::loss_of(split, batch);
  EXPECT_TRUE(within(loss, expected));
  expected.backward();
  loss.backward();
  const ParameterList wholes = list_parameters(whole), parts = list_parameters(split);
  ASSERT_EQ(parts.size(), wholes.size());
  EXPECT_EQ(parts.tensor_axis(), axis.size() > 1 ? &axis : nullptr);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Parameter& p = parts.parameters[i];
    const at::Tensor& of_whole = wholes.parameters[i].tensor;
    EXPECT_EQ(p.name, wholes.parameters[i].name);
    EXPECT_TRUE(at::equal(p.tensor, p.placement.part_of(of_whole))) << p.name;
    at::Tensor gradient = p.tensor.grad();
    if (p.placement.sums_gradient) {
      axis.all_reduce(gradient, dist::Purpose::kGradient, dist::ReduceOp::kSum).wait();
    }
    EXPECT_TRUE(within(p.placement.whole_of(gradient), of_whole.grad())) << p.name;
  }
}

class SplitLlama : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SplitLlama, ::testing::Values(1, 2, 4), testing::name_of_ranks);

TEST_P(SplitLlama, IsTheWholeModel) {
  on_ranks(GetParam(), [](Communicator& axis) {
    for (const LlamaConfig& config : {split_config(), split_config(0, false), split_config(3)}) {
      for (const bool sequence : {false, true}) {
        for (const bool checkpoints : {false, true}) {
          SCOPED_TRACE(fmt::format("{} classes, tied {}, sequence {}, checkpoints {}",
                                   config.classes, config.tied, sequence, checkpoints));
          expect_same(axis, {config, sequence, checkpoints});
        }
      }
    }
  });
}

// How many bytes they take, PlannedActivations of tests/fake_process_group compares; how many they
// send, PlannerOnTensorAxis.
TEST_P(SplitLlama, CheckpointsInPartsOrOnTheHostChangeNoBit) {
  on_ranks(GetParam(), [](Communicator& axis) {
    // Losses and gradients of two passes, which add up.
    const auto passes = [&](bool checkpoints, const CheckpointOptions& options) {
      SeededValues values(4);
      Llama model(split_config(), axis);
      initialize_parameters(model, values);
      model.checkpoint_activations(checkpoints, options);
      std::vector<at::Tensor> result;
      for (int pass = 0; pass < 2; ++pass) {
        const at::Tensor loss = data::loss_of(model, split_text(split_config()));
        result.push_back(loss.detach().clone());
        loss.backward();
      }
      for (const Parameter& p : list_parameters(model).parameters) {
        result.push_back(p.tensor.grad());
      }
      return result;
    };
    const std::vector<at::Tensor> expected = passes(false, {});
    for (const CheckpointOptions& options :
         std::vector<CheckpointOptions>{{}, {.partition_over = &axis}}) {
      EXPECT_TRUE(testing::same_bits(passes(true, options), expected));
    }
  });
}

TEST(SplitLlamaThatDoesNotFit, NamesTheNumberAndAPresetThatDoes) {
  on_ranks(2, [](Communicator& axis) {
    const auto refused = [&](const LlamaConfig& config, const std::vector<std::string>& parts) {
      expect_error([&] { defer([&] { return std::make_shared<Llama>(config, axis); }); }, parts);
    };
    refused(tools::preset("smollm2-360m"), {"15 heads", "2 tensor ranks", "llama-360m"});
    refused(tools::preset("smollm2-135m"), {"9 heads", "llama-360m"});
    LlamaConfig config = tools::preset("tiny");
    config.kv_heads = 1;
    refused(config, {"1 key/value heads", "2 tensor ranks"});
    config = tools::preset("tiny");
    config.mlp = 177;
    refused(config, {"177 features in its MLP"});
    config = tools::preset("tiny");
    config.vocabulary = 257;
    refused(config, {"257 tokens in its vocabulary"});
  });
  for (const int ranks : {2, 4})
    EXPECT_NO_THROW(check_tensor_parallel(tools::preset("llama-360m"), ranks));
}

TEST(SplitLlamaBatches, ThatDifferOrDoNotFitAreErrorsOnAllRanks) {
  on_ranks(2, [](Communicator& axis) {
    SeededValues values(4);
    Llama model(split_config(), {axis, /*cut_sequence=*/true});
    initialize_parameters(model, values);
    data::Batch batch = split_text(split_config());
    if (axis.rank() == 1) batch.inputs = batch.inputs.roll(1);
    expect_error([&] { data::loss_of(model, batch); },
                 {"ranks 0 and 1, which are on one tensor axis", "data axis"});
    expect_error([&] { model.predict(batch.inputs, batch.lengths); },
                 {"ranks 0 and 1, which are on one tensor axis", "data axis"});
    batch = split_text(split_config());
    batch.inputs = batch.inputs.narrow(1, 0, 7).contiguous();
    batch.targets = batch.targets.narrow(1, 0, 7).contiguous();
    expect_error([&] { data::loss_of(model, batch); }, {"7 elements", "2 ranks", "tokens"});
  });
}

TEST(SplitLlamaCheckpoints, InPartsNameWhatDoesNotFit) {
  on_ranks(2, [](Communicator& axis) {
    Llama sequence(split_config(), {axis, true}), whole(split_config(), {});
    expect_error([&] { sequence.checkpoint_activations(true, {.partition_over = &axis}); },
                 {"sequence parallelism"});
    expect_error([&] { whole.checkpoint_activations(true, {.partition_over = &axis}); },
                 {"the model's tensor axis only"});
    expect_error(
        [&] {
          checkpoint([](const auto& in) { return in[0] * 2; }, {at::ones({3}).requires_grad_()},
                     {.partition_over = &axis});
        },
        {"input 0 of a checkpoint has 3 elements", "2 tensor ranks"});
  });
}

}  // namespace
}  // namespace zero::nn
