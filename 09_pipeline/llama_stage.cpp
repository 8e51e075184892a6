#include "llama_stage.hpp"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/functional.hpp>

namespace zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Pass = c10::intrusive_ptr<StagePass>;

at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Adds both parts of a tied weight's gradient: first the head's, then the embedding's, as the whole
// model does (nn::linear and nn::embedding).
struct TiedGradient : Function<TiedGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids, const Pass& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward({weight, ids});
    return at::zeros({}, at::kFloat);
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    const variable_list saved = context->get_saved_variables();
    // The graph's node holds the pass, so the reference stays valid.
    const auto& pass = static_cast<StagePass&>(*context->saved_data["pass"].toCapsule());
    const at::Tensor of_head =
        nn::accumulate_linear(saved[0], pass.logits_gradient, pass.head_input);
    at::Tensor to_weight = pass.embedding->add_gradient(saved[1], pass.output_gradient);
    if (to_weight.defined()) to_weight += of_head;  // the weight has hooks
    return {to_weight, at::Tensor(), at::Tensor()};
  }
};

nn::LlamaConfig checked(const nn::LlamaConfig& config, int stage, int stages) {
  if (stages < 1 || stage < 0 || stage >= stages || config.layers < stages) {
    throw Error(fmt::format(
        "stage {} of {} stages for a model of {} layers: every stage needs at least one layer",
        stage, stages, config.layers));
  }
  if (config.classes > 0) {
    throw Error("a pipeline trains language models: this one is a classifier (num_labels)");
  }
  return config;
}

nn::Llama without_bytes(const nn::LlamaConfig& config, const nn::TensorParallel& tensor) {
  return std::move(*nn::defer([&] { return std::make_shared<nn::Llama>(config, tensor); }));
}

}  // namespace

LlamaStage::LlamaStage(const nn::LlamaConfig& config, int stage, int stages,
                       const nn::TensorParallel& tensor)
    : whole_(without_bytes(checked(config, stage, stages), tensor)),
      stage_(stage),
      stages_(stages),
      whole_model_{nn::list_parameters(whole_), {}} {
  // Registered in the whole model's order, under the same names.
  const auto modules = whole_.named_modules("", /*include_self=*/false);
  const auto body = register_module("model", std::make_shared<nn::Layer>());
  const bool embeds = is_first() || (is_last() && config.tied);
  if (embeds) body->register_module("embed_tokens", modules["model.embed_tokens"]);
  const auto layers = body->register_module("layers", std::make_shared<nn::Layer>());
  for (std::int64_t i = first_layer(); i < last_layer(); ++i) {
    layers->register_module(std::to_string(i), modules[fmt::format("model.layers.{}", i)]);
  }
  if (is_last()) {
    body->register_module("norm", modules["model.norm"]);
    if (!config.tied) register_module("lm_head", modules["lm_head"]);
  }
  if (is_tied() && embeds) {
    embedding_ = modules["model.embed_tokens"]->as<nn::Embedding>();
    shared_weight_ = embedding_->parameters().front();
    shared_weight_.set_requires_grad(is_last());
    if (is_first()) whole_model_.copy = shared_weight_;
  }
}

std::int64_t LlamaStage::first_layer() const {
  return dist::piece_begin(config().layers, stage_, stages_);
}

std::int64_t LlamaStage::last_layer() const {
  return dist::piece_begin(config().layers, stage_ + 1, stages_);
}

void LlamaStage::checkpoint_activations(bool on, const nn::CheckpointOptions& options) {
  whole_.checkpoint_activations(on, options);
  partitions_checkpoints_ = on && options.partition_over != nullptr;
}

void LlamaStage::check_batch(const MicroBatch& batch) const {
  whole_.check_inputs(batch.inputs);
  whole_.check_targets(batch.inputs, batch.targets);
  const std::int64_t elements = c10::multiply_integers(activation_sizes(batch));
  if (!partitions_checkpoints_ || elements % tensor_parallel().ranks() == 0) return;
  throw Error(
      fmt::format("the activations of a layer have {} elements, which {} tensor ranks cannot share "
                  "evenly: checkpoints cannot be partitioned",
                  elements, tensor_parallel().ranks()));
}

std::vector<std::int64_t> LlamaStage::activation_sizes(const MicroBatch& batch) const {
  return {batch.inputs.size(0), tensor_parallel().positions(batch.inputs.size(1)), config().hidden};
}

std::int64_t LlamaStage::activation_bytes(const MicroBatch& batch) const {
  return c10::multiply_integers(activation_sizes(batch)) *
         static_cast<std::int64_t>(c10::elementSize(config().dtype));
}

at::Tensor LlamaStage::empty_activations(const MicroBatch& batch) const {
  return at::empty(activation_sizes(batch), batch.inputs.options().dtype(config().dtype));
}

at::Tensor LlamaStage::loss(const MicroBatch& batch) {
  return run([&] {
    if (pass_->adds_tied_gradient) {
      pass_->embedding = embedding_;
      return TiedGradient::apply(shared_weight_, batch.inputs, pass_);
    }
    const at::Tensor x = run_layers(batch);
    return is_last() ? whole_.loss_of(logits(x), batch.targets, batch.loss_terms) : hand_on(x);
  });
}

at::Tensor LlamaStage::run_layers(const MicroBatch& batch) {
  at::Tensor x = is_first() ? whole_.embed(batch.inputs) : pass_->input;
  // The embedding is frozen here; its output's gradient is what the last stage needs.
  if (is_first() && is_tied()) pass_->input = x.set_requires_grad(c10::GradMode::is_enabled());
  return whole_.run_layers(std::move(x), batch.inputs, first_layer(), last_layer());
}

at::Tensor LlamaStage::hand_on(const at::Tensor& x) {
  pass_->output = x.detach();
  if (x.requires_grad()) {
    x.register_hook([pass = pass_](const at::Tensor&) {
      return std::exchange(pass->output_gradient, at::Tensor());
    });
  }
  return x.sum().zero_();
}

at::Tensor LlamaStage::logits(const at::Tensor& x) {
  const at::Tensor normal = whole_.before_head(x);
  if (!is_tied()) return whole_.head(normal);
  // Without the weight's gradient: its factors are kept, because another one is added before it.
  pass_->head_input = rows(normal.detach());
  const at::Tensor logits = nn::linear(normal, shared_weight_.detach());
  if (logits.requires_grad()) {
    logits.register_hook(
        [pass = pass_](const at::Tensor& gradient) { pass->logits_gradient = rows(gradient); });
  }
  return logits;
}

}  // namespace zero
