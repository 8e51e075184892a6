#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include <zero/nn/attention.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/llama_config.hpp>
#include <zero/nn/unit.hpp>

/// The Llama architecture (Touvron et al. 2023) as in Hugging Face's transformers: the same
/// parameter names, shapes, order and numerics, so that its weights can be loaded and its results
/// compared.
///
///     model                      one decoder layer (a unit)
///       embed_tokens               x = x + self_attn(input_layernorm(x))
///       layers.0 ... layers.L-1    x = x + mlp(post_attention_layernorm(x))
///       norm
///     lm_head (untied) or score (classifier)
///
/// The root unit holds everything outside the decoder layers: embedding, final norm and head.
///
/// Split over a tensor axis of n ranks (tensor_parallel.hpp), a rank has the embedding and the head
/// of vocabulary / n tokens, heads / n and kv_heads / n attention heads, and mlp / n features of
/// each MLP. Norms, and the head of a classifier, are whole on every rank. In a step with B samples
/// of S tokens, an axis all-reduces 4 activations [B, S, hidden] for each layer and 2 for embedding
/// and head (1 under a classifier), and gathers 2 B S numbers for the loss.
namespace zero::nn {

/// Grouped-query self-attention with rotary positions: q_proj, k_proj, v_proj, o_proj.
class LlamaAttention : public Layer {
 public:
  explicit LlamaAttention(const LlamaConfig& config, const TensorParallel& tensor = {});
  /// [B, S, hidden] to [B, S, hidden], or S / n under sequence parallelism; `table` has at least S
  /// positions.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& table) const;

 private:
  std::int64_t head_size_;
  TensorParallel tensor_;
  std::shared_ptr<ColumnParallelLinear> query_, key_, value_;
  std::shared_ptr<RowParallelLinear> output_;
};

/// down_proj(silu(gate_proj(x)) * up_proj(x)).
class LlamaMlp : public Layer {
 public:
  explicit LlamaMlp(const LlamaConfig& config, const TensorParallel& tensor = {});
  /// [B, S, hidden] to the same shape.
  at::Tensor forward(const at::Tensor& x) const;

 private:
  TensorParallel tensor_;
  std::shared_ptr<ColumnParallelLinear> gate_, up_;
  std::shared_ptr<RowParallelLinear> down_;
};

/// One decoder layer: the unit that a strategy gathers and reshards.
class LlamaLayer : public Unit {
 public:
  explicit LlamaLayer(const LlamaConfig& config, const TensorParallel& tensor = {});
  /// [B, S, hidden] to [B, S, hidden], with the unit's hooks around it.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& table);
  /// Sets whether only the input is kept for backward; see Llama::checkpoint_activations().
  void checkpoint_activations(bool on, const CheckpointOptions& options) {
    checkpoints_ = on;
    checkpoint_options_ = options;
  }

 private:
  at::Tensor body(const at::Tensor& x, const RotaryTable& table) const;

  bool checkpoints_ = false;
  CheckpointOptions checkpoint_options_;
  std::shared_ptr<LlamaAttention> attention_;
  std::shared_ptr<LlamaMlp> mlp_;
  std::shared_ptr<RmsNorm> input_norm_, post_attention_norm_;
};

/// A Llama model with a head: a language model, or a sequence classifier if LlamaConfig::classes is
/// set. Its parameters have no values until initialize_parameters(), a strategy, or a weights file
/// sets them.
class Llama : public Unit {
 public:
  /// Throws zero::Error for a config that check() refuses, or check_tensor_parallel().
  /// `tensor`: splits the model over a tensor axis, whose ranks all make it, with the same config,
  /// and then pass the same batches.
  explicit Llama(const LlamaConfig& config, const TensorParallel& tensor = {});

  /// `inputs`: token ids, int64 [B, S]. Language model: cross-entropy of `targets` [B, S], the next
  /// token of every position or kIgnoredTarget. Classifier: cross-entropy of the labels `targets`
  /// [B]. Mean over `terms`, the number of targets that count. `lengths`: int64 [B], tokens before
  /// padding, for a classifier; undefined if nothing is padded.
  /// Throws zero::Error for a batch of another shape or an id outside the vocabulary, and, split
  /// over a tensor axis, on all its ranks if they have different batches (on the CPU; 8 bytes of
  /// Purpose::kControl), or if S cannot be cut evenly under sequence parallelism.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, std::int64_t terms,
                  const at::Tensor& lengths = {});

  /// Logits: language model [B, S, vocabulary]; classifier [B, classes], from the last token of
  /// each sample that is not padding. Whole on all ranks of a tensor axis.
  at::Tensor predict(const at::Tensor& inputs, const at::Tensor& lengths = {});

  /// Sets whether every decoder layer keeps only its input for backward and recomputes the rest
  /// (checkpoint.hpp), from the next forward on; off by default. Activations then take one tensor
  /// [B, S, hidden] per layer plus those of a single layer, for one more forward of all layers. The
  /// bits of losses and gradients do not depend on it, so ranks may differ in it, unless the
  /// strategy gathers layer by layer, or the model is split over a tensor axis.
  ///
  /// `options` say where the inputs are kept. All ranks of a tensor axis set the same. Throws
  /// zero::Error if they are to be partitioned over other ranks than the model's tensor axis, or
  /// under sequence parallelism, where each rank has a part of them already.
  void checkpoint_activations(bool on, const CheckpointOptions& options = {});

  /// The parts of loss() and predict(), in their order; a stage of a pipeline runs some of them.
  /// They call no hooks of the root: the run() of the caller is around them.
  ///
  /// The residual stream: [B, S, hidden], or [B, S / n, hidden] under sequence parallelism.
  at::Tensor embed(const at::Tensor& ids);
  /// Through the decoder layers [begin, end). `ids` are those of embed().
  at::Tensor run_layers(at::Tensor x, const at::Tensor& ids, std::int64_t begin, std::int64_t end);
  /// What the head reads, normalised; of a classifier the last tokens alone.
  at::Tensor before_head(at::Tensor x, const at::Tensor& lengths = {});
  /// The logits of this tensor rank.
  at::Tensor head(const at::Tensor& x);
  at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets, std::int64_t terms) const;
  /// The logits of all tensor ranks.
  at::Tensor whole_logits(const at::Tensor& logits) const;

  /// What loss() checks before it begins.
  void check_inputs(const at::Tensor& inputs, const at::Tensor& lengths = {}) const;
  void check_targets(const at::Tensor& inputs, const at::Tensor& targets) const;

  const LlamaConfig& config() const { return config_; }
  const TensorParallel& tensor_parallel() const { return tensor_; }

 private:
  void check_same_batch(const std::vector<at::Tensor>& batch, std::int64_t terms = 0) const;
  at::Tensor logits(const at::Tensor& inputs, const at::Tensor& lengths);

  LlamaConfig config_;
  TensorParallel tensor_;
  std::shared_ptr<Embedding> embedding_;
  std::vector<std::shared_ptr<LlamaLayer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> head_;  // lm_head (column-parallel) or score; null if the embedding is it
};

}  // namespace zero::nn
