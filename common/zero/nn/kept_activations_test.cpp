// What a split Llama keeps between forward and backward, by the allocator: checkpoints in
// parts, and the residual stream under sequence parallelism. None of it changes a bit, or more than
// the last digits.

#include <gtest/gtest.h>

#include <functional>

#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using dist::Communicator;
using memory::Category;
using testing::expect_error;
using testing::on_ranks;
using testing::same_bits;

constexpr std::int64_t kSamples = 2, kTokens = 8, kHidden = 16;
constexpr std::int64_t kResidual = kSamples * kTokens * kHidden * 8;  // bytes, in double

LlamaConfig of_layers(std::int64_t layers) {
  return {.vocabulary = 24,
          .hidden = kHidden,
          .layers = layers,
          .heads = 4,
          .kv_heads = 4,
          .head_size = 4,
          .mlp = 20,
          .initializer_range = 0.3,
          .dtype = at::kDouble};
}

data::Batch batch_of(int step) {
  const at::Tensor ids = (at::arange(kSamples * kTokens) * (7 + step)).remainder(24);
  return {.inputs = ids.view({kSamples, kTokens}),
          .targets = (ids * 5 + 1).remainder(24).view({kSamples, kTokens}),
          .loss_terms = kSamples * kTokens};
}

struct SplitModel {
  SplitModel(std::int64_t layers, const TensorParallel& tensor) : model(of_layers(layers), tensor) {
    SeededValues values(4);
    initialize_parameters(model, values);
  }
  at::Tensor forward(int step) {
    const memory::Charge charge(Category::kActivations);
    return model.loss(batch_of(step));
  }
  // Losses and gradients of two passes, which add up.
  std::vector<at::Tensor> passes() {
    std::vector<at::Tensor> result;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor loss = forward(step);
      result.push_back(loss.detach().clone());
      loss.backward();
    }
    for (const Parameter& p : list_parameters(model).parameters) result.push_back(p.tensor.grad());
    return result;
  }
  Llama model;
};

std::int64_t activations() { return memory::snapshot()[Category::kActivations]; }

// Bytes of activations that a layer keeps between forward and backward: the rest cancels out.
std::int64_t kept_by_a_layer(
    const TensorParallel& tensor, const std::function<void(Llama&)>& set = [](Llama&) {}) {
  const auto kept = [&](std::int64_t layers) {
    SplitModel split(layers, tensor);
    set(split.model);
    const std::int64_t before = activations();
    const at::Tensor loss = split.forward(0);
    return activations() - before;
  };
  const std::int64_t of_two = kept(4) - kept(2);
  EXPECT_EQ(of_two % 2, 0);
  return of_two / 2;
}

class KeptActivations : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, KeptActivations, ::testing::Values(1, 2, 4),
                         testing::name_of_ranks);

TEST_P(KeptActivations, PartitionedCheckpointsTakeTheirPartAndChangeNoBit) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const TensorParallel tensor(axis);
    const auto with = [](const CheckpointOptions& options) {
      return [options](Llama& model) { model.checkpoint_activations(true, options); };
    };
    EXPECT_EQ(kept_by_a_layer(tensor, with({})), kResidual);
    EXPECT_EQ(kept_by_a_layer(tensor, with({.partition_over = &axis})), kResidual / axis.size());
    const std::vector<at::Tensor> expected = SplitModel(3, tensor).passes();
    for (const CheckpointOptions& options :
         std::vector<CheckpointOptions>{{}, {.partition_over = &axis}, {.on_host = true}}) {
      SplitModel split(3, tensor);
      split.model.checkpoint_activations(true, options);
      EXPECT_TRUE(same_bits(split.passes(), expected));
    }
  });
}

TEST_P(KeptActivations, PartitionedCheckpointsSendOneGatherEach) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const auto sent = [&](const CheckpointOptions& options) {
      SplitModel split(3, axis);
      split.model.checkpoint_activations(true, options);
      const dist::Traffic before = axis.traffic();
      split.forward(0).backward();
      return axis.traffic().since(before).bytes(dist::Purpose::kActivation);
    };
    const std::int64_t n = axis.size();
    // Forward runs twice: 2 more all-reduces a layer.
    const std::int64_t plain =
        (6 * 3 + 2) * 2 * kResidual * (n - 1) / n + 2 * kSamples * kTokens * 8 * (n - 1);
    EXPECT_EQ(sent({}), plain);
    EXPECT_EQ(sent({.partition_over = &axis}), plain + 3 * kResidual * (n - 1) / n);
  });
}

// Two norms with their inputs and a number for each row: 1 / n of them.
TEST_P(KeptActivations, SequenceParallelismKeepsAPartOfNormsAndResiduals) {
  on_ranks(GetParam(), [](Communicator& axis) {
    const std::int64_t n = axis.size(), rows = kSamples * kTokens * 8;
    const std::int64_t without = kept_by_a_layer(axis), with = kept_by_a_layer({axis, true});
    EXPECT_EQ(without - with, (2 * kResidual + 2 * rows) * (n - 1) / n);
    const auto checkpoints = [](Llama& model) { model.checkpoint_activations(true); };
    EXPECT_EQ(kept_by_a_layer({axis, true}, checkpoints), kResidual / n);
  });
}

TEST(KeptActivationsErrors, NameWhatDoesNotFit) {
  on_ranks(2, [](Communicator& axis) {
    SplitModel sequence(1, {axis, true}), whole(1, {});
    expect_error([&] { sequence.model.checkpoint_activations(true, {.partition_over = &axis}); },
                 {"sequence parallelism"});
    expect_error([&] { whole.model.checkpoint_activations(true, {.partition_over = &axis}); },
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
