#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zero/nn/llama.hpp>

namespace zero {

/// One micro-batch on its way through one stage of a pipeline: what passes between the stage's
/// forward and backward, and between stages.
struct StagePass : torch::CustomClassHolder {
  bool adds_tied_gradient = false;  ///< the next forward is that of a tied gradient

  /// What comes out of the stage before, [B, S, hidden]: a leaf. Its gradient after backward is
  /// what that stage needs. In the first stage of a tied model, the embedding's output: its
  /// gradient is what the last stage needs.
  at::Tensor input;
  at::Tensor output;  ///< for the next stage, [B, S, hidden], without a graph
  /// Of `output`, from the next stage; set it before backward. For a tied gradient, that of the
  /// embedding's output.
  at::Tensor output_gradient;
  /// Last stage of a tied model: the weight's gradient is transpose(logits_gradient) head_input.
  at::Tensor head_input;       // [B S, hidden]
  at::Tensor logits_gradient;  // [B S, vocabulary]
};

/// The part of a Llama model that one stage of a pipeline holds: the decoder layers [first_layer(),
/// last_layer()), in stage 0 the embedding before them, in the last stage the final norm and the
/// head after them. Parameters have the names of the whole model, so that first values drawn by
/// seed and name, and those of a safetensors file, are those of the whole model. They have no bytes
/// until a strategy allocates them.
///
/// If the head is the embedding (LlamaConfig::tied), both the first and the last stage hold the
/// shared weight. The last one trains it. In the first one it is frozen, and PipelineTrainer writes
/// the new value into it after every update.
///
/// loss() and predict() work on the pass that set_pass() has named.
class LlamaStage : public nn::Model {
 public:
  /// Throws zero::Error for a stage that does not exist, for fewer layers than stages, and for a
  /// classifier.
  LlamaStage(const nn::LlamaConfig& config, int stage, int stages);

  /// Last stage: the loss, as Llama::loss(). Other stages: a scalar 0 from which backward continues
  /// with StagePass::output_gradient. Sends and receives nothing.
  at::Tensor loss(const data::Batch& batch) override;
  /// Last stage: the logits. Other stages: as loss().
  at::Tensor predict(const data::Batch& batch) override;

  /// The pass of the next loss() or predict().
  void set_pass(c10::intrusive_ptr<StagePass> pass) { pass_ = std::move(pass); }

  /// Throws zero::Error if loss() of the whole model would refuse the batch.
  void check_batch(const data::Batch& batch) const;
  /// Of what passes between stages for this batch: [B, S, hidden], uninitialised.
  at::Tensor empty_activations(const data::Batch& batch) const;

  int stage() const { return stage_; }
  int stages() const { return stages_; }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == stages_ - 1; }
  /// The shared weight, if this stage holds it and another one too; else undefined.
  const at::Tensor& shared_weight() const { return shared_weight_; }
  /// Whether first and last stage share a weight.
  bool is_tied() const { return config().tied && stages_ > 1; }
  std::int64_t first_layer() const;
  std::int64_t last_layer() const;
  const nn::LlamaConfig& config() const { return whole_.config(); }

  /// The names of the whole model's parameters in its order, a tied one once.
  const std::vector<std::string>& names_of_all() const { return names_of_all_; }

  /// See Llama::checkpoint_activations().
  void checkpoint_activations(bool on) { whole_.checkpoint_activations(on); }

 private:
  template <typename Module>
  std::shared_ptr<Module> take(const std::string& name);
  at::Tensor input(const data::Batch& batch);
  at::Tensor run_layers(const data::Batch& batch);
  at::Tensor logits(const at::Tensor& hidden);

  // The stage's modules are modules of a whole model without bytes.
  nn::Llama whole_;
  int stage_;
  int stages_;
  std::vector<std::string> names_of_all_;
  c10::intrusive_ptr<StagePass> pass_;
  at::Tensor shared_weight_;
  std::shared_ptr<nn::Embedding> embedding_;  // null in the stages between; in the last if untied
  std::vector<std::shared_ptr<nn::LlamaLayer>> layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
  std::shared_ptr<nn::Linear> head_;
};

}  // namespace zero
