#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/pipeline_trainer.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/optim/adamw.hpp>

#include "deferred.hpp"
#include "moved_to.hpp"
#include "session.hpp"

/// A Llama model that is cut into stages and may be split over a tensor axis, and the same model
/// without stages to compare with.
namespace zero::testing {

/// The axes of a rank, made by all ranks: the tensor axis varies fastest, then the pipeline.
struct ThreeAxes {
  ThreeAxes(dist::Communicator& world, int stages, int tensor_ranks = 1)
      : mesh(world, {{"data", dist::Mesh::kRest}, {"pipeline", stages}, {"tensor", tensor_ranks}}),
        data(&mesh.along("data")),
        pipeline(&mesh.along("pipeline")),
        tensor(&mesh.along("tensor")),
        ranks_of_stage(split_stage(world, stages, tensor_ranks)),
        of_stage(*ranks_of_stage, {{"data", dist::Mesh::kRest}, {"tensor", tensor_ranks}}) {}

  dist::Mesh mesh;
  dist::Communicator* data;
  dist::Communicator* pipeline;
  dist::Communicator* tensor;
  std::unique_ptr<dist::Communicator> ranks_of_stage;
  dist::Mesh of_stage;  // the data and the tensor axis, for the whole model

 private:
  std::unique_ptr<dist::Communicator> split_stage(dist::Communicator& world, int stages,
                                                  int tensor_ranks) const {
    std::vector<int> ranks;
    for (int r = 0; r < world.size(); ++r) {
      if (r / tensor_ranks % stages == pipeline->rank()) ranks.push_back(r);
    }
    static int made = 0;  // all ranks make the same axes, one after the other
    return world.split(ranks, fmt::format("axes {}, stage {}", made++, pipeline->rank()));
  }
};

struct PipelineShape {
  std::string mode = "ddp";
  bool tied = true;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  train::StepOptions trainer = {.clip_norm = 0.05};
  optim::OptimizerFactory optimizer = optim::adamw({.learning_rate = 0.01});
  train::Accumulation accumulation = train::Accumulation::kLocal;
  std::int64_t width = 1;  ///< as many tensor ranks can share the model
  bool sequence = false;   ///< cuts the sequence, if there is a tensor axis
  bool checkpoints = false;
  bool partitions = false;  ///< the checkpoints, over the tensor axis
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

/// Odd sizes on each of `shape.width` tensor ranks; 5 layers give stages of different sizes.
inline nn::LlamaConfig pipeline_config(const PipelineShape& shape) {
  nn::LlamaConfig config;
  config.vocabulary = 37 * shape.width;
  config.hidden = 12;
  config.layers = 5;
  config.heads = 2 * shape.width;
  config.kv_heads = shape.width;
  config.head_size = 6;
  config.mlp = 19 * shape.width;
  config.tied = shape.tied;
  config.initializer_range = 0.2;
  config.dtype = shape.dtype;
  return config;
}

/// Ranks of the data axis have different tokens; micro-batches have different numbers of loss terms
/// and of samples.
inline data::Batch pipeline_batch(const PipelineShape& shape, int data_rank, int step, int m) {
  at::Generator generator = at::detail::createCPUGenerator(
      static_cast<std::uint64_t>(10000 * data_rank + 100 * step + m + 1));
  const auto draw = [&] {
    return at::randint(0, 37 * shape.width, {m % 2 + 2, shape.sequence ? 8 : 7}, generator,
                       at::TensorOptions(at::kLong));
  };
  data::Batch batch{.inputs = draw(), .targets = draw()};
  batch.targets.view({-1}).narrow(0, 0, m % 3).fill_(data::kIgnoredTarget);
  batch.loss_terms = batch.targets.numel() - m % 3;
  return batch;
}

inline std::vector<data::Batch> pipeline_batches(const PipelineShape& shape, int data_rank,
                                                 int step, int count) {
  std::vector<data::Batch> batches;
  for (int m = 0; m < count; ++m) {
    batches.push_back(moved_to(shape.device, pipeline_batch(shape, data_rank, step, m)));
  }
  return batches;
}

/// One rank with its stage.
struct PipelineRank {
  PipelineRank(const ThreeAxes& axes, const PipelineShape& options)
      : shape(options),
        data(*axes.data),
        pipeline(*axes.pipeline),
        stage(stage_on_device(axes, shape)),
        strategy(make_strategy(shape.mode, {.module = *stage,
                                            .mesh = axes.mesh,
                                            .optimizer = shape.optimizer,
                                            .values = &values,
                                            .accumulation = shape.accumulation})),
        trainer(*stage, *strategy, shape.schedule, shape.trainer) {
    if (!shape.checkpoints) return;
    stage->checkpoint_activations(true,
                                  {.partition_over = shape.partitions ? axes.tensor : nullptr});
  }

  std::vector<data::Batch> batches(int step, int count) const {
    return pipeline_batches(shape, data.rank(), step, count);
  }
  tools::StepResult step(int number, int count) { return trainer.step(batches(number, count)); }
  static std::shared_ptr<LlamaStage> stage_on_device(const ThreeAxes& axes,
                                                     const PipelineShape& shape) {
    auto stage = std::make_shared<LlamaStage>(pipeline_config(shape), axes.pipeline->rank(),
                                              axes.pipeline->size(),
                                              nn::TensorParallel(*axes.tensor, shape.sequence));
    move_to(shape.device, *stage);
    return stage;
  }

  PipelineShape shape;
  dist::Communicator& data;
  dist::Communicator& pipeline;
  nn::SeededValues values{3};
  std::shared_ptr<LlamaStage> stage;
  std::unique_ptr<train::Strategy> strategy;
  tools::PipelineTrainer trainer;
};

/// The whole model, split over the tensor axis of `mesh`.
struct WholeRank {
  WholeRank(const dist::Mesh& mesh, const PipelineShape& options, const std::string& mode = "ddp")
      : shape(options),
        data(mesh.data()),
        model(make_deferred<nn::Llama>(pipeline_config(shape),
                                       nn::TensorParallel(mesh.tensor(), shape.sequence))),
        strategy(
            make_strategy(mode, {*model, mesh, shape.optimizer, &values, "", shape.accumulation})),
        trainer(*strategy, losses_of(*strategy), shape.trainer) {}

  tools::StepResult step(int number, int count) {
    return trainer.step(pipeline_batches(shape, data.rank(), number, count));
  }

  PipelineShape shape;
  dist::Communicator& data;
  nn::SeededValues values{3};
  std::shared_ptr<nn::Llama> model;
  std::unique_ptr<train::Strategy> strategy;
  tools::Trainer trainer;
};

/// What a rank has of the model, by name, and the losses and norms of its steps. A copy of a
/// parameter that another stage trains has a weight alone.
struct TrainedModel {
  std::vector<double> losses;
  std::vector<float> norms;
  std::map<std::string, at::Tensor> weights, gradients;
};

/// Trains for `steps` steps. Called by all ranks.
template <typename Rank>
TrainedModel trained_model(Rank& rank, int steps, int count) {
  TrainedModel result;
  for (int s = 0; s < steps; ++s) {
    const tools::StepResult step = rank.step(s, count);
    result.losses.push_back(step.loss);
    result.norms.push_back(step.gradient_norm);
  }
  const std::vector<at::Tensor> weights = whole_weights(*rank.strategy);
  const std::vector<at::Tensor> gradients = whole_gradients(*rank.strategy);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = rank.strategy->list().parameters[i].name;
    result.weights[name] = weights[i];
    if (!rank.strategy->stage_of_model().is_copy(i)) result.gradients[name] = gradients[i];
  }
  return result;
}

/// Expects that a stage has the bits of its part of the whole model.
inline void expect_part_of(const TrainedModel& stage, const TrainedModel& whole) {
  EXPECT_EQ(stage.losses, whole.losses);
  EXPECT_EQ(stage.norms, whole.norms);
  for (const auto& [name, weight] : stage.weights) {
    EXPECT_TRUE(same_bits({weight}, {whole.weights.at(name)})) << name;
  }
  for (const auto& [name, gradient] : stage.gradients) {
    EXPECT_TRUE(same_bits({gradient}, {whole.gradients.at(name)})) << "gradient of " << name;
  }
}

}  // namespace zero::testing
