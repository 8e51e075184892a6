#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include <zero/nn/attention.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/llama_config.hpp>
#include <zero/nn/model.hpp>

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
namespace zero::nn {

/// Grouped-query self-attention with rotary positions: q_proj, k_proj, v_proj, o_proj.
class LlamaAttention : public Layer {
 public:
  explicit LlamaAttention(const LlamaConfig& config);
  /// [B, S, hidden] to [B, S, hidden]; `table` has at least S positions.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& table) const;

 private:
  std::int64_t head_size_;
  std::shared_ptr<Linear> query_, key_, value_, output_;
};

/// down_proj(silu(gate_proj(x)) * up_proj(x)).
class LlamaMlp : public Layer {
 public:
  explicit LlamaMlp(const LlamaConfig& config);
  /// [..., hidden] to [..., hidden].
  at::Tensor forward(const at::Tensor& x) const;

 private:
  std::shared_ptr<Linear> gate_, up_, down_;
};

/// One decoder layer: the unit that a strategy gathers and reshards.
class LlamaLayer : public Unit {
 public:
  explicit LlamaLayer(const LlamaConfig& config);
  /// [B, S, hidden] to [B, S, hidden], with the unit's hooks around it.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& table);
  /// Sets whether only the input is kept for backward; see Llama::checkpoint_activations().
  void checkpoint_activations(bool on) { checkpoints_ = on; }

 private:
  at::Tensor body(const at::Tensor& x, const RotaryTable& table) const;

  bool checkpoints_ = false;
  std::shared_ptr<LlamaAttention> attention_;
  std::shared_ptr<LlamaMlp> mlp_;
  std::shared_ptr<RmsNorm> input_norm_, post_attention_norm_;
};

/// A Llama model with a head: a language model, or a sequence classifier if LlamaConfig::classes is
/// set. Its parameters have no values until initialize_parameters(), a strategy, or a weights file
/// sets them.
class Llama : public Model {
 public:
  /// Throws zero::Error for a config that check() refuses.
  explicit Llama(const LlamaConfig& config);

  /// Language model: cross-entropy of `targets` [B, S], the next token of every position.
  /// Classifier: cross-entropy of the labels `targets` [B]. Mean over data::Batch::loss_terms.
  /// Throws zero::Error for a batch of another shape or an id outside the vocabulary.
  at::Tensor loss(const data::Batch& batch) override;

  /// Logits: language model [B, S, vocabulary]; classifier [B, classes], from the last token of
  /// each sample that is not padding. Reads only `inputs` and, for a classifier, `lengths`.
  at::Tensor predict(const data::Batch& batch) override;

  /// Sets whether every decoder layer keeps only its input for backward and recomputes the rest
  /// (checkpoint.hpp), from the next forward on; off by default. Activations then take one tensor
  /// [B, S, hidden] per layer plus those of a single layer, for one more forward of all layers. The
  /// bits of losses and gradients do not depend on it, so ranks may differ in it, unless the
  /// strategy gathers layer by layer.
  void checkpoint_activations(bool on);

  /// What loss() checks before it begins.
  void check_inputs(const data::Batch& batch) const;
  void check_targets(const data::Batch& batch) const;

  const LlamaConfig& config() const { return config_; }

 private:
  at::Tensor hidden_states(const at::Tensor& ids);
  at::Tensor logits(const data::Batch& batch);

  LlamaConfig config_;
  std::shared_ptr<Embedding> embedding_;
  std::vector<std::shared_ptr<LlamaLayer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> head_;  // lm_head or score; null if the embedding is the head
};

}  // namespace zero::nn
