#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/llama.hpp>

namespace zero::nn {
namespace {

template <typename Projection>
std::shared_ptr<Projection> projection(const LlamaConfig& config, std::int64_t in, std::int64_t out,
                                       const TensorParallel& tensor) {
  return std::make_shared<Projection>(in, out, Initializer::normal(config.initializer_range),
                                      tensor, config.dtype);
}

std::shared_ptr<RmsNorm> norm(const LlamaConfig& config, const TensorPlacement& placement) {
  return std::make_shared<RmsNorm>(config.hidden, config.norm_eps, config.dtype, placement);
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, const TensorParallel& tensor)
    : head_size_(config.head_size), tensor_(tensor) {
  const std::int64_t query_size = config.heads * head_size_;
  const std::int64_t kv_size = config.kv_heads * head_size_;
  const auto of_input = [&](const char* name, std::int64_t size) {
    return register_module(name,
                           projection<ColumnParallelLinear>(config, config.hidden, size, tensor));
  };
  query_ = of_input("q_proj", query_size);
  key_ = of_input("k_proj", kv_size);
  value_ = of_input("v_proj", kv_size);
  output_ = register_module(
      "o_proj", projection<RowParallelLinear>(config, query_size, config.hidden, tensor));
}

at::Tensor LlamaAttention::forward(const at::Tensor& x, const RotaryTable& table) const {
  const at::Tensor entered = tensor_.enter(x);  // [B, S, hidden]
  const auto split_heads = [&](const at::Tensor& projected) {
    return projected.view(
        {entered.size(0), entered.size(1), projected.size(-1) / head_size_, head_size_});
  };
  const at::Tensor query = rotate(split_heads(query_->forward(entered)), table);
  const at::Tensor key = rotate(split_heads(key_->forward(entered)), table);
  const at::Tensor value = split_heads(value_->forward(entered));
  return output_->forward(causal_attention(query, key, value).flatten(2));
}

LlamaMlp::LlamaMlp(const LlamaConfig& config, const TensorParallel& tensor) : tensor_(tensor) {
  gate_ = register_module(
      "gate_proj", projection<ColumnParallelLinear>(config, config.hidden, config.mlp, tensor));
  up_ = register_module(
      "up_proj", projection<ColumnParallelLinear>(config, config.hidden, config.mlp, tensor));
  down_ = register_module("down_proj",
                          projection<RowParallelLinear>(config, config.mlp, config.hidden, tensor));
}

at::Tensor LlamaMlp::forward(const at::Tensor& x) const {
  const at::Tensor entered = tensor_.enter(x);
  return down_->forward(nn::swiglu(gate_->forward(entered), up_->forward(entered)));
}

LlamaLayer::LlamaLayer(const LlamaConfig& config, const TensorParallel& tensor) {
  attention_ = register_module("self_attn", std::make_shared<LlamaAttention>(config, tensor));
  mlp_ = register_module("mlp", std::make_shared<LlamaMlp>(config, tensor));
  input_norm_ = register_module("input_layernorm", norm(config, tensor.on_residual()));
  post_attention_norm_ =
      register_module("post_attention_layernorm", norm(config, tensor.on_residual()));
}

at::Tensor LlamaLayer::forward(const at::Tensor& x, const RotaryTable& table) {
  return run([&] {
    if (!checkpoints_) return body(x, table);
    return checkpoint(
        [this, table](const std::vector<at::Tensor>& inputs) {
          return body(inputs.front(), table);
        },
        {x}, checkpoint_options_);
  });
}

at::Tensor LlamaLayer::body(const at::Tensor& x, const RotaryTable& table) const {
  const at::Tensor y = x + attention_->forward(input_norm_->forward(x), table);
  return y + mlp_->forward(post_attention_norm_->forward(y));
}

Llama::Llama(const LlamaConfig& config, const TensorParallel& tensor)
    : config_(config), tensor_(tensor) {
  check(config);
  check_tensor_parallel(config, tensor.ranks());
  // Plain containers, so that the dotted names match Hugging Face's.
  auto body = register_module("model", std::make_shared<Layer>());
  embedding_ = body->register_module(
      "embed_tokens", std::make_shared<Embedding>(config.vocabulary, config.hidden,
                                                  Initializer::normal(config.initializer_range),
                                                  config.dtype, tensor));
  auto layers = body->register_module("layers", std::make_shared<Layer>());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back(
        layers->register_module(std::to_string(i), std::make_shared<LlamaLayer>(config, tensor)));
  }
  // A classifier's last norm and head work on whole samples, alike on all tensor ranks.
  const bool classifies = config.classes > 0;
  norm_ = body->register_module(
      "norm", norm(config, classifies ? TensorPlacement() : tensor.on_residual()));
  if (classifies) {
    head_ = register_module(
        "score", projection<ColumnParallelLinear>(config, config.hidden, config.classes, {}));
  } else if (!config.tied) {
    head_ = register_module("lm_head", projection<ColumnParallelLinear>(config, config.hidden,
                                                                        config.vocabulary, tensor));
  }
}

at::Tensor Llama::loss(const at::Tensor& inputs, const at::Tensor& targets, std::int64_t terms,
                       const at::Tensor& lengths) {
  check_same_batch({inputs, targets, lengths}, terms);
  check_inputs(inputs, lengths);
  check_targets(inputs, targets);
  return run([&] { return loss_of(logits(inputs, lengths), targets, terms); });
}

at::Tensor Llama::loss_of(const at::Tensor& logits, const at::Tensor& targets,
                          std::int64_t terms) const {
  return consuming_cross_entropy(logits.view({-1, logits.size(-1)}), targets.reshape(-1), terms,
                                 config_.classes > 0 ? nullptr : tensor_.axis);
}

void Llama::check_targets(const at::Tensor& inputs, const at::Tensor& targets) const {
  const bool classifier = config_.classes > 0;
  const at::IntArrayRef expected = classifier ? inputs.sizes().slice(0, 1) : inputs.sizes();
  if (!targets.defined() || targets.scalar_type() != at::kLong || targets.sizes() != expected) {
    throw Error(
        fmt::format("the targets of this batch must be int64 [{}] ({})", fmt::join(expected, ", "),
                    classifier ? "one label for each sample" : "the next token of each position"));
  }
}

at::Tensor Llama::predict(const at::Tensor& inputs, const at::Tensor& lengths) {
  check_same_batch({inputs, lengths});
  check_inputs(inputs, lengths);
  return run([&] { return whole_logits(logits(inputs, lengths)); });
}

at::Tensor Llama::whole_logits(const at::Tensor& logits) const {
  if (tensor_.axis == nullptr || config_.classes > 0) return logits;
  return gather_over_axis(logits, /*dim=*/-1, *tensor_.axis, Uncut::kSame);
}

void Llama::checkpoint_activations(bool on, const CheckpointOptions& options) {
  const dist::Communicator* const ranks = options.partition_over;
  if (ranks != nullptr && ranks->size() > 1 && (ranks != tensor_.axis || tensor_.cuts_sequence())) {
    throw Error(tensor_.cuts_sequence()
                    ? "checkpoints cannot be partitioned under sequence parallelism: each rank has "
                      "a part of the residual stream already"
                    : "checkpoints can be partitioned over the model's tensor axis only: on other "
                      "ranks they differ");
  }
  for (const auto& layer : layers_) layer->checkpoint_activations(on, options);
}

void Llama::check_same_batch(const std::vector<at::Tensor>& batch, std::int64_t terms) const {
  if (tensor_.axis == nullptr) return;
  // First: a rank that refuses its batch leaves the others behind.
  const std::uint64_t digest = dist::digest(batch, static_cast<std::uint64_t>(terms));
  const auto mine = static_cast<double>(digest >> 11);  // as many bits as it holds
  const std::vector<double> all = dist::all_gather_scalars(*tensor_.axis, {mine});
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw Error(
        fmt::format("ranks {} and {}, which are on one tensor axis, have different batches; they "
                    "share the work on one batch: give the data of a rank by its rank on the data "
                    "axis",
                    tensor_.axis->world_rank(0), tensor_.axis->world_rank(static_cast<int>(r))));
  }
}

void Llama::check_inputs(const at::Tensor& ids, const at::Tensor& lengths) const {
  if (!ids.defined() || ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    throw Error("the inputs of a Llama batch must be int64 token ids of shape [samples, tokens]");
  }
  // On a GPU the kernel that reads them checks them; a check here would make the host wait.
  if (ids.numel() > 0 && ids.is_cpu()) {
    const auto [smallest, largest] = at::aminmax(ids);
    if (smallest.item<std::int64_t>() < 0 || largest.item<std::int64_t>() >= config_.vocabulary) {
      throw Error(fmt::format(
          "the batch holds token ids from {} to {}, but the model's vocabulary has {}",
          smallest.item<std::int64_t>(), largest.item<std::int64_t>(), config_.vocabulary));
    }
  }
  if (lengths.defined() && lengths.sizes() != ids.sizes().slice(0, 1)) {
    throw Error(fmt::format("the batch has {} samples but lengths of shape [{}]", ids.size(0),
                            fmt::join(lengths.sizes(), ", ")));
  }
}

at::Tensor Llama::embed(const at::Tensor& ids) { return embedding_->forward(ids); }

at::Tensor Llama::run_layers(at::Tensor x, const at::Tensor& ids, std::int64_t begin,
                             std::int64_t end) {
  // Computed for every forward: a kept table would be resident beside the model states.
  const RotaryTable positions =
      rotary_table(ids.size(1), config_.head_size, config_.rope_theta, config_.dtype, ids.device());
  for (std::int64_t i = begin; i < end; ++i) x = layers_[i]->forward(x, positions);
  return x;
}

at::Tensor Llama::before_head(at::Tensor x, const at::Tensor& lengths) {
  if (config_.classes == 0) return tensor_.enter(norm_->forward(x));
  // The norm works row by row, so only the rows that the head reads need it.
  x = tensor_.whole(x);
  const std::int64_t samples = x.size(0);
  const at::TensorOptions ids = x.options().dtype(at::kLong);
  const at::Tensor last = lengths.defined() ? lengths - 1 : at::full({samples}, x.size(1) - 1, ids);
  return norm_->forward(x.index({at::arange(samples, ids), last}));  // [B, hidden]
}

at::Tensor Llama::head(const at::Tensor& x) {
  return head_ != nullptr ? head_->forward(x) : embedding_->as_head(x);
}

at::Tensor Llama::logits(const at::Tensor& ids, const at::Tensor& lengths) {
  return head(before_head(run_layers(embed(ids), ids, 0, config_.layers), lengths));
}

}  // namespace zero::nn
