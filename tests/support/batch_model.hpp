#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <tools/ladder/trainer.hpp>
#include <zero/nn/unit.hpp>
#include <zero/train/strategy.hpp>

namespace zero::testing {

/// A model of tests that makes a loss of a batch.
class BatchModel : public nn::Unit {
 public:
  virtual at::Tensor loss(const data::Batch& batch) = 0;
};

/// How a BatchModel, tools::Mlp or nn::Llama makes losses of batches.
tools::Loss losses_of(torch::nn::Module& model);
inline tools::Loss losses_of(train::Strategy& strategy) { return losses_of(strategy.module()); }

/// The loss of a batch, by the model of a strategy or an engine.
inline at::Tensor forward_batch(train::Strategy& strategy, const data::Batch& batch) {
  return strategy.forward([&] { return losses_of(strategy)(batch); }, batch.loss_terms);
}
template <typename Engine>
requires requires(Engine& engine) { engine.strategy(); }
at::Tensor forward_batch(Engine& engine, const data::Batch& batch) {
  const tools::Loss loss = losses_of(engine.strategy());
  return engine.forward([&] { return loss(batch); }, batch.loss_terms);
}

}  // namespace zero::testing
