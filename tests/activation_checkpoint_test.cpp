// Activation checkpointing under every strategy: the same bits, the same bytes on the wire, and
// parameters that are there when a layer runs again.

#include <c10/core/GradMode.h>

#include <tests/support/deferred.hpp>
#include <tests/support/edge_case_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/whole_weights.hpp>
#include <tools/models/presets.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

struct Outcome {
  std::vector<double> losses;
  // This rank's pieces, before the last step; all weights, in the order of registration.
  std::vector<at::Tensor> gradients, weights;
  std::int64_t sent = 0;  // in the last step
};

// Three steps of `model` under `mode`.
Outcome train(dist::Communicator& communicator, const std::string& mode, torch::nn::Module& model,
              const std::function<data::Batch(int)>& batch, int micro_batches) {
  nn::SeededValues values(3);
  const auto strategy = make_strategy(
      mode, {model, communicator, optim::adamw({.learning_rate = 0.01}), &values, ""});
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const dist::Traffic before = communicator.traffic();
    std::vector<data::Batch> batches;
    for (int m = 0; m < micro_batches; ++m) batches.push_back(batch(step * micro_batches + m));
    outcome.losses.push_back(trainer.step(batches).loss);
    const dist::Traffic sent = communicator.traffic().since(before);
    outcome.sent = training_bytes(sent);
  }
  const nn::ParameterList& list = strategy->list();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const train::ParameterShard piece = strategy->placement(i).updated;
    if (!piece.tensor.defined() || !piece.tensor.grad().defined()) continue;
    outcome.gradients.push_back(piece.tensor.grad().clone());
  }
  outcome.weights = whole_weights(*strategy);
  return outcome;
}

void expect_same_training(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_TRUE(same_bits(a.weights, b.weights));
}

void expect_identical(const Outcome& a, const Outcome& b) {
  expect_same_training(a, b);
  EXPECT_TRUE(same_bits(a.gradients, b.gradients));
}

std::shared_ptr<nn::Llama> llama(bool checkpointed) {
  nn::LlamaConfig config = tools::preset("tiny");
  config.layers = 3;
  auto model = make_deferred<nn::Llama>(config);
  model->checkpoint_activations(checkpointed);
  return model;
}

data::Batch text(int rank, int step) {
  const at::Tensor inputs =
      (at::arange(2 * 12).view({2, 12}) * (7 + step) + 31 * rank).remainder(255);
  return {.inputs = inputs, .targets = inputs + 1, .loss_terms = 2 * 12};
}

ZERO_TESTS_ON_RANKS(ActivationCheckpointing, 2, 3);

TEST_P(ActivationCheckpointing, OfLlamaChangesNoBitAndSendsNothingMore) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto trained = [&](const std::string& mode, bool checkpointed) {
      return train(
          communicator, mode, *llama(checkpointed),
          [&](int step) { return text(communicator.rank(), step); }, 2);
    };
    const Outcome ddp = trained("ddp", false);
    for (const std::string& mode : all_modes()) {
      SCOPED_TRACE(mode);
      const Outcome with = trained(mode, true), without = trained(mode, false);
      expect_identical(with, without);
      expect_same_training(with, ddp);
      EXPECT_FALSE(with.gradients.empty());
      EXPECT_EQ(with.sent, without.sent);
      // The hooks of units fire in the same order, so a rank may do without where others do not.
      expect_identical(trained(mode, communicator.rank() == 0), without);
    }
  });
}

// A checkpoint around units, in place of one inside: the unit twice in one part, and the first part
// of the model, none of whose inputs requires a gradient. The gain, of ordinary autograd, is used
// in two checkpoints: on top of an earlier micro-batch its gradients would be added up in another
// order than without.
class Around : public BatchModel {
 public:
  explicit Around(bool checkpointed) : checkpointed_(checkpointed) {
    inner_ = register_module("inner", std::make_shared<Inner>());
    gain_ = add_parameter("gain", {5}, nn::Initializer::constant(1.25));
    unused_ = add_parameter("unused", {5}, nn::Initializer::constant(1.0));
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      const at::Tensor x = part(batch.inputs);
      return part(x).sum(1, /*keepdim=*/true);
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return at::mse_loss(predict(batch), batch.targets);
  }

 private:
  class Inner : public nn::Unit {
   public:
    Inner() { weight_ = add_parameter("weight", {5, 5}, nn::Initializer::normal(0.6)); }
    at::Tensor forward(const at::Tensor& x) {
      return run([&] { return nn::linear(x, weight_).tanh(); });
    }

   private:
    at::Tensor weight_;
  };

  at::Tensor part(const at::Tensor& x) {
    const auto body = [this](const std::vector<at::Tensor>& inputs) {
      return inner_->forward(inner_->forward(inputs.front()) * gain_);
    };
    return checkpointed_ ? nn::checkpoint(body, {x}) : body({x});
  }

  bool checkpointed_;
  std::shared_ptr<Inner> inner_;
  at::Tensor gain_, unused_;
};

ZERO_TESTS_ON_RANKS(ActivationCheckpointingOfUnits, 1, 2, 3, 4, 8);

TEST_P(ActivationCheckpointingOfUnits, ThatAreUsedFourTimesChangesNoBit) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto trained = [&](const std::string& mode, bool checkpointed) {
      const auto model = make_deferred<Around>(checkpointed);
      const auto rows = [&](int step) { return edge_case_batch(17, communicator.rank(), step); };
      return train(communicator, mode, *model, rows, 1);
    };
    const Outcome ddp = trained("ddp", false);
    EXPECT_FALSE(ddp.weights.empty());
    for (const std::string& mode : all_modes()) {
      SCOPED_TRACE(mode);
      const Outcome with = trained(mode, true);
      expect_identical(with, trained(mode, false));
      expect_same_training(with, ddp);
    }
  });
}

// What ZeRO-3 saves stays saved: a layer that runs again is gathered and resharded like any other.
TEST(ActivationCheckpointingResidency, Zero3HoldsNoMoreParametersAndFewerActivations) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::string mode : {"zero3", "tensor_zero3"}) {
      std::int64_t parameters[2], activations[2];
      for (const bool checkpointed : {false, true}) {
        const auto model = llama(checkpointed);
        nn::SeededValues values(3);
        const auto strategy =
            make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""});
        const data::Batch batch = text(communicator.rank(), 0);
        using memory::Category;
        const memory::Snapshot before = memory::snapshot();
        memory::reset_peaks();
        strategy->backward(forward_batch(*strategy, batch));
        const memory::Snapshot peak = memory::snapshot();
        strategy->finish_backward();
        parameters[checkpointed] = peak.peak_of(Category::kParameters);
        activations[checkpointed] =
            peak.peak_of(Category::kActivations) - before[Category::kActivations];
        EXPECT_EQ(memory::snapshot()[Category::kParameters], before[Category::kParameters]) << mode;
      }
      EXPECT_EQ(parameters[true], parameters[false]) << mode;
      EXPECT_LT(activations[true], activations[false] * 2 / 3) << mode;
    }
  });
}

}  // namespace
}  // namespace zero::testing
