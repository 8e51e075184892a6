#include "mesh_run.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include <09_pipeline/pipeline_trainer.hpp>
#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/nn/llama.hpp>

#include "device.hpp"

namespace zero::ladder {
namespace {

std::shared_ptr<nn::Llama> model_without_storage(const Options& options,
                                                 const nn::TensorParallel& tensor = {}) {
  const nn::DeferredStorage deferred;
  return std::make_shared<nn::Llama>(options.config(), tensor);
}

// The folder has the whole model, whatever part of it a rank takes.
std::unique_ptr<io::StoredValues> stored_values(const Options& options) {
  return std::make_unique<io::StoredValues>(
      options.weights, nn::list_parameters(*model_without_storage(options)),
      io::llama_values_options(options.config(), options.seed));
}

dist::Mesh mesh_of(dist::Communicator& world, const Options& options) {
  if (!options.has_mesh()) return world;
  std::vector<dist::Mesh::Axis> axes = {{"data", dist::Mesh::kRest}};
  if (options.stages > 1) axes.push_back({"pipeline", options.stages});
  if (options.tensor_ranks > 1) axes.push_back({"tensor", options.tensor_ranks});
  return {world, std::move(axes)};
}

}  // namespace

MeshRun::MeshRun(dist::Communicator& world, const Options& options, at::Device device)
    : options_(options), mesh_(mesh_of(world, options)) {
  const nn::TensorParallel tensor(mesh_.tensor(), options.sequence_parallel);
  const nn::CheckpointOptions kept{.partition_over =
                                       options.partition_activations ? &mesh_.tensor() : nullptr};
  const auto take = [&](const auto& model) {
    model->checkpoint_activations(options.activation_checkpointing, kept);
    to_device(device, *model);
    model_ = model;
  };
  if (options.stages == 1) {
    take(model_without_storage(options, tensor));
    return;
  }
  stage_ = std::make_shared<LlamaStage>(options.config(), mesh_.pipeline().rank(),
                                        mesh_.pipeline().size(), tensor);
  take(stage_);
}

std::unique_ptr<nn::ParameterSource> MeshRun::first_values() const {
  const bool asked = mesh_.data().rank() == 0 || options_.fake_process_group > 0;
  if (options_.weights.empty() || !asked) {
    return std::make_unique<nn::SeededValues>(options_.seed);
  }
  return stored_values(options_);
}

std::unique_ptr<train::Trainer> MeshRun::make_trainer(train::Strategy& strategy,
                                                      const train::StepOptions& options) const {
  if (stage_ == nullptr) return std::make_unique<train::Trainer>(strategy, options);
  const PipelineSchedule schedule = options_.pipeline_schedule == "gpipe"
                                        ? PipelineSchedule::kGPipe
                                        : PipelineSchedule::kOneForwardOneBackward;
  return std::make_unique<PipelineTrainer>(*stage_, strategy, schedule, options);
}

AxisTraffic MeshRun::traffic() const {
  return {mesh_.data().traffic(), mesh_.pipeline().traffic(), mesh_.tensor().traffic()};
}

std::int64_t MeshRun::pipeline_bytes(const std::vector<data::Batch>& micro_batches) const {
  return stage_ == nullptr ? 0 : zero::pipeline_bytes(*stage_, micro_batches);
}

std::string MeshRun::model_digest(const nn::ParameterList& list,
                                  const std::vector<std::string>& digests) const {
  base::Json mine;
  for (std::size_t i = 0; i < digests.size(); ++i) mine[list.parameters[i].name] = digests[i];
  std::map<std::string, std::string> all;
  for (const std::string& stage : mesh_.pipeline().exchange(mine.dump())) {
    const base::Json of_stage = base::Json::parse(stage);
    for (const auto& [name, value] : of_stage.items()) {
      const auto digest = value.get<std::string>();
      if (all.emplace(name, digest).first->second == digest) continue;
      throw Error(fmt::format("two stages of the pipeline have different values of '{}'", name));
    }
  }
  base::Sha256 model;
  for (const nn::Parameter& p : nn::list_parameters(*model_without_storage(options_)).parameters) {
    model.add(all.at(p.name));
  }
  return model.hex();
}

std::string describe_weights(const Options& options) { return stored_values(options)->describe(); }

}  // namespace zero::ladder
