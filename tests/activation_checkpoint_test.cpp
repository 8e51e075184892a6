// Activation checkpointing under every strategy: the same bits, the same bytes on the wire, and
// parameters that are there when a layer runs again.

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tests/support/whole_state.hpp>
#include <tools/models/presets.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

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

struct Outcome {
  std::vector<double> losses;
  WholeState state;
  std::int64_t sent = 0;  // in the last step
};

// Three steps of two micro-batches.
Outcome trained(dist::Communicator& communicator, const std::string& mode, bool checkpointed) {
  const auto model = llama(checkpointed);
  nn::SeededValues values(3);
  const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""});
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const dist::Traffic before = communicator.traffic();
    const int rank = communicator.rank();
    outcome.losses.push_back(trainer.step({text(rank, 2 * step), text(rank, 2 * step + 1)}).loss);
    outcome.sent = training_bytes(communicator.traffic().since(before));
  }
  outcome.state = whole_state(*strategy);
  return outcome;
}

ZERO_TESTS_ON_RANKS(ActivationCheckpointing, 2, 3);

// The hooks of units fire in the same order, so a rank may do without where others do not.
TEST_P(ActivationCheckpointing, OfLlamaChangesNoBitAndSendsNothingMore) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Outcome ddp = trained(communicator, "ddp", false);
    for (const std::string& mode : all_modes()) {
      SCOPED_TRACE(mode);
      const std::int64_t sent = trained(communicator, mode, false).sent;
      for (const bool checkpointed : {true, communicator.rank() == 0}) {
        const Outcome with = trained(communicator, mode, checkpointed);
        EXPECT_EQ(with.losses, ddp.losses);
        EXPECT_TRUE(same_state(with.state, ddp.state));
        EXPECT_EQ(with.sent, sent);
      }
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
