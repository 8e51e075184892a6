#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include <zero/base/error.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/llama.hpp>

namespace zero::nn {
namespace {

std::shared_ptr<Linear> projection(const LlamaConfig& config, std::int64_t in, std::int64_t out) {
  return std::make_shared<Linear>(in, out, Initializer::normal(config.initializer_range),
                                  config.dtype);
}

std::shared_ptr<RmsNorm> norm(const LlamaConfig& config) {
  return std::make_shared<RmsNorm>(config.hidden, config.norm_eps, config.dtype);
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config) : head_size_(config.head_size) {
  const std::int64_t query_size = config.heads * head_size_;
  const std::int64_t kv_size = config.kv_heads * head_size_;
  query_ = register_module("q_proj", projection(config, config.hidden, query_size));
  key_ = register_module("k_proj", projection(config, config.hidden, kv_size));
  value_ = register_module("v_proj", projection(config, config.hidden, kv_size));
  output_ = register_module("o_proj", projection(config, query_size, config.hidden));
}

at::Tensor LlamaAttention::forward(const at::Tensor& x, const RotaryTable& table) const {
  const auto split_heads = [&](const at::Tensor& projected) {
    return projected.view({x.size(0), x.size(1), projected.size(-1) / head_size_, head_size_});
  };
  const at::Tensor query = rotate(split_heads(query_->forward(x)), table);
  const at::Tensor key = rotate(split_heads(key_->forward(x)), table);
  const at::Tensor value = split_heads(value_->forward(x));
  return output_->forward(causal_attention(query, key, value).flatten(2));
}

LlamaMlp::LlamaMlp(const LlamaConfig& config) {
  gate_ = register_module("gate_proj", projection(config, config.hidden, config.mlp));
  up_ = register_module("up_proj", projection(config, config.hidden, config.mlp));
  down_ = register_module("down_proj", projection(config, config.mlp, config.hidden));
}

at::Tensor LlamaMlp::forward(const at::Tensor& x) const {
  return down_->forward(nn::swiglu(gate_->forward(x), up_->forward(x)));
}

LlamaLayer::LlamaLayer(const LlamaConfig& config) {
  attention_ = register_module("self_attn", std::make_shared<LlamaAttention>(config));
  mlp_ = register_module("mlp", std::make_shared<LlamaMlp>(config));
  input_norm_ = register_module("input_layernorm", norm(config));
  post_attention_norm_ = register_module("post_attention_layernorm", norm(config));
}

at::Tensor LlamaLayer::forward(const at::Tensor& x, const RotaryTable& table) {
  return run(
      [&] {
        if (!checkpoints_) return body(x, table);
        return checkpoint(
            [this, table](const std::vector<at::Tensor>& inputs) {
              return body(inputs.front(), table);
            },
            {x});
      },
      {x});
}

at::Tensor LlamaLayer::body(const at::Tensor& x, const RotaryTable& table) const {
  const at::Tensor y = x + attention_->forward(input_norm_->forward(x), table);
  return y + mlp_->forward(post_attention_norm_->forward(y));
}

Llama::Llama(const LlamaConfig& config) : config_(config) {
  check(config);
  // Plain containers, so that the dotted names match Hugging Face's.
  auto body = register_module("model", std::make_shared<Layer>());
  embedding_ = body->register_module(
      "embed_tokens",
      std::make_shared<Embedding>(config.vocabulary, config.hidden,
                                  Initializer::normal(config.initializer_range), config.dtype));
  auto layers = body->register_module("layers", std::make_shared<Layer>());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back(
        layers->register_module(std::to_string(i), std::make_shared<LlamaLayer>(config)));
  }
  norm_ = body->register_module("norm", norm(config));
  if (config.classes > 0) {
    head_ = register_module("score", projection(config, config.hidden, config.classes));
  } else if (!config.tied) {
    head_ = register_module("lm_head", projection(config, config.hidden, config.vocabulary));
  }
}

at::Tensor Llama::loss(const data::Batch& batch) {
  check_inputs(batch);
  check_targets(batch);
  return run(
      [&] {
        const at::Tensor all = logits(batch);
        return consuming_cross_entropy(all.view({-1, all.size(-1)}), batch.targets.reshape(-1),
                                       batch.loss_terms);
      },
      {});
}

void Llama::check_targets(const data::Batch& batch) const {
  const bool classifier = config_.classes > 0;
  const at::IntArrayRef expected =
      classifier ? batch.inputs.sizes().slice(0, 1) : batch.inputs.sizes();
  if (!batch.targets.defined() || batch.targets.scalar_type() != at::kLong ||
      batch.targets.sizes() != expected) {
    throw Error(
        fmt::format("the targets of this batch must be int64 [{}] ({})", fmt::join(expected, ", "),
                    classifier ? "one label for each sample" : "the next token of each position"));
  }
}

at::Tensor Llama::predict(const data::Batch& batch) {
  check_inputs(batch);
  return run([&] { return logits(batch); }, {});
}

void Llama::checkpoint_activations(bool on) {
  for (const auto& layer : layers_) layer->checkpoint_activations(on);
}

void Llama::check_inputs(const data::Batch& batch) const {
  const at::Tensor& ids = batch.inputs;
  if (!ids.defined() || ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    throw Error("the inputs of a Llama batch must be int64 token ids of shape [samples, tokens]");
  }
  // On a GPU the kernel that reads them checks them; a check here would make the host wait.
  if (ids.numel() > 0 && !ids.is_cuda()) {
    const auto [smallest, largest] = at::aminmax(ids);
    if (smallest.item<std::int64_t>() < 0 || largest.item<std::int64_t>() >= config_.vocabulary) {
      throw Error(fmt::format(
          "the batch holds token ids from {} to {}, but the model's vocabulary has {}",
          smallest.item<std::int64_t>(), largest.item<std::int64_t>(), config_.vocabulary));
    }
  }
  if (batch.lengths.defined() && batch.lengths.sizes() != ids.sizes().slice(0, 1)) {
    throw Error(fmt::format("the batch has {} samples but lengths of shape [{}]", ids.size(0),
                            fmt::join(batch.lengths.sizes(), ", ")));
  }
}

at::Tensor Llama::hidden_states(const at::Tensor& ids) {
  // Computed for every forward: a kept table would be resident beside the model states.
  const RotaryTable positions =
      rotary_table(ids.size(1), config_.head_size, config_.rope_theta, config_.dtype, ids.device());
  at::Tensor x = embedding_->forward(ids);
  for (const auto& layer : layers_) x = layer->forward(x, positions);
  return x;
}

at::Tensor Llama::logits(const data::Batch& batch) {
  at::Tensor x = hidden_states(batch.inputs);
  if (config_.classes > 0) {
    // The norm works row by row, so only the rows that the head reads need it.
    const std::int64_t samples = x.size(0);
    const at::TensorOptions ids = batch.inputs.options();
    const at::Tensor last =
        batch.lengths.defined() ? batch.lengths - 1 : at::full({samples}, x.size(1) - 1, ids);
    x = x.index({at::arange(samples, ids), last});  // [B, hidden]
  }
  x = norm_->forward(x);
  return head_ != nullptr ? head_->forward(x) : embedding_->as_head(x);
}

}  // namespace zero::nn
