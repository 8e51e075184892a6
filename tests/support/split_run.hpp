#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

#include "batch_model.hpp"
#include "deferred.hpp"
#include "modes.hpp"
#include "whole_weights.hpp"

/// A Llama model that is split over a tensor axis and trained on a data axis.
namespace zero::testing {

/// The two axes of a rank: neighbours share a model. Made by all ranks.
struct TwoAxes {
  TwoAxes(dist::Communicator& world, int tensor_ranks)
      : mesh(world, {{"data", dist::Mesh::kRest}, {"tensor", tensor_ranks}}),
        data(&mesh.data()),
        tensor(&mesh.tensor()) {}

  dist::Mesh mesh;
  dist::Communicator *data, *tensor;
};

/// Odd enough: heads that 4 ranks can share, sizes that are no multiple of 16.
inline nn::LlamaConfig llama_to_split(at::ScalarType dtype = at::kFloat) {
  return {.vocabulary = 24,
          .hidden = 10,
          .layers = 2,
          .heads = 8,
          .kv_heads = 4,
          .head_size = 6,
          .mlp = 20,
          .initializer_range = 0.2,
          .dtype = dtype};
}

/// The batch of a rank of the data axis.
inline data::Batch split_batch(int data_rank, int step) {
  const at::Tensor ids = (at::arange(16).view({2, 8}) * (7 + step) + 5 * data_rank).remainder(24);
  return {.inputs = ids, .targets = (ids * 5 + step + 1).remainder(24), .loss_terms = 16};
}

struct SplitOptions {
  std::string mode = "ddp";
  bool sequence = false;
  at::ScalarType dtype = at::kFloat;
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = 0.01});
  train::StepOptions trainer = {};
  train::Accumulation accumulation = train::Accumulation::kLocal;
  dist::ReduceType reduce_type = dist::ReduceType::kOwn;
};

/// One rank of such a run.
struct SplitRun {
  explicit SplitRun(const dist::Mesh& mesh, const SplitOptions& options = {})
      : data(mesh.data()),
        values(3),
        model(make_deferred<nn::Llama>(llama_to_split(options.dtype),
                                       nn::TensorParallel(mesh.tensor(), options.sequence))),
        strategy(make_strategy(options.mode, {.module = *model,
                                              .mesh = mesh,
                                              .optimizer = options.optimizer,
                                              .values = &values,
                                              .accumulation = options.accumulation,
                                              .reduce_type = options.reduce_type})),
        trainer(*strategy, losses_of(*strategy), options.trainer) {}

  tools::StepResult step(int number, int micro_batches = 1) {
    std::vector<data::Batch> batches;
    for (int m = 0; m < micro_batches; ++m) {
      batches.push_back(split_batch(data.rank(), number * micro_batches + m));
    }
    return trainer.step(batches);
  }
  /// Weights, whole over the data axis, of this tensor rank's part.
  std::vector<at::Tensor> weights() { return whole_weights(*strategy); }
  /// Those of the whole model. Called by all ranks of both axes.
  std::vector<at::Tensor> model_weights() { return of_model(weights()); }
  std::vector<at::Tensor> of_model(std::vector<at::Tensor> parts) const {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = strategy->list().parameters[i].placement.whole_of(parts[i]).clone();
    }
    return parts;
  }

  dist::Communicator& data;
  nn::SeededValues values;
  std::shared_ptr<nn::Llama> model;
  std::unique_ptr<train::Strategy> strategy;
  tools::Trainer trainer;
};

}  // namespace zero::testing
