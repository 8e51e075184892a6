#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/moved_to.hpp>
#include <tests/support/whole_weights.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {

/// One rank that trains a Llama of four layers with activation checkpoints under a mode, on a
/// device. Made by all ranks.
struct LlamaOn {
  LlamaOn(dist::Communicator& communicator, const std::string& mode, at::Device device,
          const nn::CheckpointOptions& kept, at::ScalarType dtype = at::kFloat)
      : rank(communicator.rank()), device(device) {
    nn::LlamaConfig config = tools::preset("tiny");
    config.layers = 4;
    config.dtype = dtype;
    model = make_deferred<nn::Llama>(config);
    move_to(device, *model);
    model->checkpoint_activations(true, kept);
    strategy = make_strategy(
        mode, {*model, communicator, optim::with_master_weights(optim::adamw()), &values, ""});
    trainer = std::make_unique<tools::Trainer>(*strategy, losses_of(*strategy));
  }

  void step(int number, int micro_batches = 1) {
    std::vector<data::Batch> batches;
    for (int m = 0; m < micro_batches; ++m) {
      const at::Tensor ids =
          (at::arange(2 * 9).view({2, 9}) * (7 + number + 3 * m) + 31 * rank).remainder(255);
      batches.push_back(moved_to(
          device, {.inputs = ids, .targets = (ids * 5 + 1).remainder(255), .loss_terms = 2 * 9}));
    }
    trainer->step(batches);
  }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all = whole_weights(*strategy);
    for (at::Tensor& t : all) t = t.cpu();
    return all;
  }

  int rank;
  at::Device device;
  nn::SeededValues values{5};
  std::shared_ptr<nn::Llama> model;
  std::unique_ptr<train::Strategy> strategy;
  std::unique_ptr<tools::Trainer> trainer;
};

}  // namespace zero::testing
