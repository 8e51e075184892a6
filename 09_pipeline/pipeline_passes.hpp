#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <zero/train/loop/step.hpp>

#include "llama_stage.hpp"
#include "pipeline_schedule.hpp"

namespace zero {

/// The passes of a training step through a model that is cut into stages: pipeline parallelism,
/// with any strategy of chapters 00 to 06 on the data axis of each stage. The layers of a stage may
/// be split over a tensor axis.
///
/// A rank is (data index, stage, tensor rank): dist::Mesh(world, {{"data", …}, {"pipeline", …},
/// {"tensor", …}}). Its strategy holds its part of the parameters of its stage and shares them with
/// the ranks of the same stage and tensor rank. The pipeline axis connects the stages of one data
/// index and tensor rank; a rank's number on it is its stage. All ranks of a data index are given
/// the same micro-batches; data indices have different ones.
///
/// Losses, gradients, norm and update have the same bits as those of a step of the whole model
/// with the same micro-batches, data axis and tensor axis. For each micro-batch a stage sends A
/// bytes (LlamaStage::activation_bytes()) on the pipeline axis
///   to the next stage, if there is one, and to the stage before, if there is one;
///   if the embedding is the head, also from stage 0 to the last stage. Then the last stage also
///   sends its part of the weight to stage 0, once a step (Purpose::kParameter).
///
/// Checkpoints and io::save_model() of `strategy` are those of the whole model, and all ranks of
/// all axes call them.
///
/// ZeRO-3 is possible unless the embedding is the head. It rarely makes sense: it gathers the
/// stage's parameters twice for each micro-batch, and a pipeline needs many.
class PipelinePasses {
 public:
  /// Called by all ranks. `strategy` holds `stage`, and its mesh has an axis "pipeline" of
  /// stage.stages() ranks; both must outlive this object. Throws zero::Error on all ranks of all
  /// axes if they differ in model or schedule, or if the strategy does not fit: with a tied weight
  /// it must keep parameters whole, and add up micro-batches before it reduces them.
  PipelinePasses(LlamaStage& stage, train::Strategy& strategy,
                 PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward);

  /// Forward and backward of all micro-batches, and the reduction. `step` is the strategy's, whose
  /// end() follows; `all_terms` the loss terms of all ranks. `ended` is called after each action.
  /// Returns the losses; zeros in stages but the last. Called by all ranks; blocks.
  std::vector<double> run(
      train::Step& step, const std::vector<MicroBatch>& micro_batches, double all_terms,
      const std::function<void(PipelineAction::Kind)>& ended = [](auto) {});
  /// The same without backward.
  std::vector<double> run_forward(const std::vector<MicroBatch>& micro_batches);
  /// Call it after an update, in place of the strategy's.
  void sync_parameters();

 private:
  class Run;

  void verify_strategy();

  LlamaStage& stage_;
  train::Strategy& strategy_;
  dist::Communicator& pipeline_;
  PipelineSchedule schedule_;
};

/// Bytes that stage `stage` sends on the pipeline axis in a step with these micro-batches, by the
/// formulas above. Control messages are not counted.
std::int64_t pipeline_bytes(const LlamaStage& stage, const std::vector<MicroBatch>& micro_batches);

}  // namespace zero
