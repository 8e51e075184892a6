#pragma once

#include <vector>

#include <09_pipeline/pipeline_passes.hpp>

#include "trainer.hpp"

namespace zero::tools {

inline std::vector<MicroBatch> micro_batches_of(const std::vector<data::Batch>& batches) {
  std::vector<MicroBatch> all;
  for (const data::Batch& b : batches) all.push_back({b.inputs, b.targets, b.loss_terms});
  return all;
}

/// The Trainer of a stage of a pipeline: its ranks, all of one data index, pass the same
/// micro-batches.
class PipelineTrainer final : public Trainer {
 public:
  /// Called by all ranks. Throws as Trainer and PipelinePasses do.
  PipelineTrainer(LlamaStage& stage, train::Strategy& strategy,
                  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward,
                  const train::StepOptions& options = {})
      : Trainer(strategy, {}, options), stage_(stage), passes_(stage, strategy, schedule) {}

 protected:
  std::vector<double> run_micro_batches(const std::vector<data::Batch>& batches, double all_terms,
                                        const EndOfPhase& end_of) override {
    return passes_.run(step_of_all(), micro_batches_of(batches), all_terms,
                       [&](PipelineAction::Kind kind) {
                         end_of(kind == PipelineAction::Kind::kForward ? &PhaseSeconds::forward
                                                                       : &PhaseSeconds::backward);
                       });
  }
  std::vector<double> run_forward(const std::vector<data::Batch>& batches) override {
    return passes_.run_forward(micro_batches_of(batches));
  }
  void sync_parameters() override { passes_.sync_parameters(); }
  void check_batch(const data::Batch& b) const override {
    stage_.check_batch({b.inputs, b.targets, b.loss_terms});
  }

 private:
  LlamaStage& stage_;
  PipelinePasses passes_;
};

}  // namespace zero::tools
