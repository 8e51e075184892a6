#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero {

/// Token ids, int64 [B, S], the next token of each, nn::kIgnoredTarget if there is none, and how
/// many of these count.
struct MicroBatch {
  at::Tensor inputs, targets;
  std::int64_t loss_terms = 0;
};

/// One micro-batch on its way through one stage of a pipeline: the tensors that forward keeps for
/// backward, and those that stages send to each other. Stages send the residual stream of this
/// tensor rank: [B, S, hidden], or [B, S / n, hidden] under sequence parallelism over n ranks.
struct StagePass : torch::CustomClassHolder {
  /// The next loss() is 0, and its backward only adds the tied gradient.
  bool adds_tied_gradient = false;

  /// The output of the stage before, as a leaf. That stage needs the leaf's gradient after
  /// backward. In the first stage of a tied model: the embedding's output, whose gradient the last
  /// stage needs.
  at::Tensor input;
  at::Tensor output;  ///< for the next stage, without a graph
  /// `output`'s gradient, from the next stage; set before backward. If adds_tied_gradient: the
  /// gradient of the embedding's output, from stage 0.
  at::Tensor output_gradient;
  /// Last stage of a tied model: the weight's gradient is transpose(logits_gradient) head_input.
  at::Tensor head_input;       // [B S, hidden]
  at::Tensor logits_gradient;  // [B S, vocabulary / n]
  const nn::Embedding* embedding = nullptr;
};

/// The part of a Llama model that one stage of a pipeline holds: the decoder layers [first_layer(),
/// last_layer()), in stage 0 the embedding before them, in the last stage the final norm and the
/// head after them. Parameters have the names that they have in the whole model, so they get the
/// same first values, from a seed or from a safetensors file. Their storage is deferred (PyTorch:
/// meta device) until a strategy allocates it.
///
/// If the head is the embedding (LlamaConfig::tied), both the first and the last stage hold the
/// shared weight. The last one trains it. In the first one it is frozen, and PipelinePasses writes
/// the new value into it after every update.
///
/// With a tensor axis (nn/tensor_parallel.hpp) this object holds the part of one tensor rank. All
/// tensor ranks run the same passes. Each stage has a tensor axis of its own.
///
/// loss() works on the pass that set_pass() has named.
class LlamaStage : public nn::Unit {
 public:
  /// Throws zero::Error for a stage that does not exist, for fewer layers than stages, for a
  /// classifier, and for a model that `tensor` cannot split. All ranks of a tensor axis must pass
  /// the same arguments.
  LlamaStage(const nn::LlamaConfig& config, int stage, int stages,
             const nn::TensorParallel& tensor = {});

  /// Last stage: the loss, as Llama::loss(). Other stages: a scalar 0 from which backward continues
  /// with StagePass::output_gradient. Sends and receives nothing between stages. Does not check the
  /// batch: see check_batch().
  at::Tensor loss(const MicroBatch& batch);

  /// The pass of the next loss().
  void set_pass(c10::intrusive_ptr<StagePass> pass) { pass_ = std::move(pass); }

  /// Throws zero::Error if loss() of the whole model would refuse the batch; in every stage alike.
  /// Does not compare the batches of tensor ranks.
  void check_batch(const MicroBatch& batch) const;
  /// Uninitialised activations of this batch between stages, on this tensor rank.
  at::Tensor empty_activations(const MicroBatch& batch) const;
  /// Their bytes.
  std::int64_t activation_bytes(const MicroBatch& batch) const;

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
  const nn::TensorParallel& tensor_parallel() const { return whole_.tensor_parallel(); }

  /// Null if there is one stage.
  const nn::WholeModel* whole_model() const override {
    return stages_ > 1 ? &whole_model_ : nullptr;
  }

  /// See Llama::checkpoint_activations(). Received activations are not partitioned.
  void checkpoint_activations(bool on, const nn::CheckpointOptions& options = {});

 private:
  std::vector<std::int64_t> activation_sizes(const MicroBatch& batch) const;
  at::Tensor run_layers(const MicroBatch& batch);
  at::Tensor hand_on(const at::Tensor& x);
  at::Tensor logits(const at::Tensor& x);

  // A whole model without bytes: this stage's modules are among its own, and run there.
  nn::Llama whole_;
  int stage_;
  int stages_;
  nn::WholeModel whole_model_;
  bool partitions_checkpoints_ = false;
  c10::intrusive_ptr<StagePass> pass_;
  at::Tensor shared_weight_;
  nn::Embedding* embedding_ = nullptr;  // of the shared weight
};

}  // namespace zero
