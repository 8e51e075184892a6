#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <09_pipeline/llama_stage.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/loop/trainer.hpp>

#include "options.hpp"

namespace zero::ladder {

/// What a rank has sent along each axis; nothing along those that its mesh lacks.
struct AxisTraffic {
  dist::Traffic data, pipeline, tensor;
};

/// A rank's place in the mesh of a run, and what it trains there: the model, its part of the model
/// on the tensor axis, or of one stage.
class MeshRun {
 public:
  /// Called by all ranks of `world`; blocks. The model's parameters are on `device`, without bytes.
  /// `world` and `options`, which check_mesh() has accepted, must outlive this object. Throws
  /// zero::Error as dist::Mesh does.
  MeshRun(dist::Communicator& world, const Options& options, at::Device device);

  const dist::Mesh& mesh() const { return mesh_; }
  nn::Model& model() const { return *model_; }

  /// Where the first values of model() come from. Only rank 0 of each data axis opens the folder of
  /// the weights, because only it is asked. A rank of a fake process group makes the values of all.
  std::unique_ptr<nn::ParameterSource> first_values() const;
  /// A trainer of model(), which `strategy` holds. Called by all ranks; blocks.
  std::unique_ptr<train::Trainer> make_trainer(train::Strategy& strategy,
                                               const train::StepOptions& options) const;

  AxisTraffic traffic() const;
  /// Bytes that this rank sends along the pipeline axis in such a step, by formula. Control
  /// messages are not counted.
  std::int64_t pipeline_bytes(const std::vector<data::Batch>& micro_batches) const;

  /// The digest of the whole model, 64 hexadecimal digits, from those of the parameters in `list`,
  /// each whole. Called by all ranks; blocks. Throws zero::Error on all ranks of a pipeline if two
  /// stages have different values of a parameter.
  std::string model_digest(const nn::ParameterList& list,
                           const std::vector<std::string>& digests) const;

 private:
  const Options& options_;
  dist::Mesh mesh_;
  std::shared_ptr<LlamaStage> stage_;  // null: one stage
  std::shared_ptr<nn::Model> model_;
};

/// Compares the folder of the weights with the model and says what will be read, converted and
/// drawn by seed. Builds the model without storage: only to be called in a process that may use
/// tensors. @throws zero::Error where the folder's tensors are not those of the model.
std::string describe_weights(const Options& options);

}  // namespace zero::ladder
