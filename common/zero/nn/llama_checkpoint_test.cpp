// Llama with every decoder layer checkpointed.

#include <gtest/gtest.h>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::identical;

struct LlamaRun {
  std::int64_t activations = 0;  // peak, beside what was there before
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};

LlamaRun run_llama(bool checkpointed, bool classifier) {
  LlamaConfig config = preset("tiny");
  config.layers = 6;
  config.classes = classifier ? 5 : 0;
  Llama model(config);
  SeededValues values(7);
  initialize_parameters(model, values);
  model.checkpoint_activations(checkpointed);
  data::Batch batch;
  batch.inputs = at::arange(2 * 48).view({2, 48});
  batch.targets = classifier ? at::arange(2) : batch.inputs + 1;
  batch.loss_terms = classifier ? 2 : 2 * 48;
  const std::int64_t before = memory::snapshot()[memory::Category::kActivations];
  memory::reset_peaks();
  LlamaRun run;
  {
    const memory::Charge charge(memory::Category::kActivations);
    at::Tensor loss = model.loss(batch);
    loss.backward();
    run.loss = loss.detach();
  }
  run.activations = memory::snapshot().peak_of(memory::Category::kActivations) - before;
  for (const at::Tensor& p : model.parameters()) run.gradients.push_back(p.grad());
  return run;
}

TEST(CheckpointedLlama, HasTheSameBitsAndFewerActivations) {
  for (const bool classifier : {false, true}) {
    const LlamaRun with = run_llama(true, classifier), without = run_llama(false, classifier);
    EXPECT_TRUE(identical(with.loss, without.loss));
    ASSERT_EQ(with.gradients.size(), without.gradients.size());
    for (std::size_t i = 0; i < with.gradients.size(); ++i) {
      ASSERT_TRUE(with.gradients[i].defined());
      EXPECT_TRUE(identical(with.gradients[i], without.gradients[i])) << i;
    }
    // Of six layers' activations one layer's and the inputs are left, and the logits.
    EXPECT_LT(2 * with.activations, without.activations)
        << with.activations << " and " << without.activations << " bytes";
  }
}

}  // namespace
}  // namespace zero::nn
