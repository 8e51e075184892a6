#include "llama_stage.hpp"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/gradient_destination.hpp>

namespace zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Pass = c10::intrusive_ptr<StagePass>;

StagePass& pass_of(AutogradContext* context) {
  // The graph's node holds the pass, so the reference stays valid.
  return static_cast<StagePass&>(*context->saved_data["pass"].toCapsule());
}

at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The end of a stage that is not the last: backward begins with the gradient that was received,
// just as it is.
struct StageEnd : Function<StageEnd> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& output, const Pass& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    pass->output = output.detach();
    return at::zeros({}, at::kFloat);
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    return {std::exchange(pass_of(context).output_gradient, at::Tensor()), at::Tensor()};
  }
};

// The output head of a tied model. Backward keeps what the weight's gradient is made of, because
// another gradient has to be added before it.
struct TiedHead : Function<TiedHead> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Pass& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward({weight});
    pass->head_input = rows(x.detach());
    return at::linear(x, weight);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor weight = context->get_saved_variables().front();
    const at::Tensor gradient = rows(gradients[0]);
    pass_of(context).logits_gradient = gradient;
    std::vector<std::int64_t> sizes = gradients[0].sizes().vec();
    sizes.back() = weight.size(1);
    return {gradient.mm(weight).view(sizes), at::Tensor(), at::Tensor()};
  }
};

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
    StagePass& pass = pass_of(context);
    nn::GradientDestination sum = nn::gradient_destination(saved[0]);
    if (sum.fresh) {
      at::mm_out(sum.tensor, pass.logits_gradient.t(), pass.head_input);
    } else {
      sum.tensor.addmm_(pass.logits_gradient.t(), pass.head_input);
    }
    at::Tensor to_weight = pass.embedding->add_gradient(saved[1], pass.output_gradient);
    if (to_weight.defined()) to_weight += sum.to_autograd;  // the weight has hooks
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
  const nn::DeferredStorage deferred;
  return nn::Llama(config, tensor);
}

}  // namespace

LlamaStage::LlamaStage(const nn::LlamaConfig& config, int stage, int stages,
                       const nn::TensorParallel& tensor)
    : whole_(without_bytes(checked(config, stage, stages), tensor)),
      stage_(stage),
      stages_(stages),
      whole_model_{nn::list_parameters(whole_), {}} {
  // Registered in the whole model's order, under the same names.
  const auto body = register_module("model", std::make_shared<nn::Layer>());
  if (is_first() || (is_last() && config.tied)) {
    embedding_ = take<nn::Embedding>("model.embed_tokens");
    body->register_module("embed_tokens", embedding_);
  }
  const auto layers = body->register_module("layers", std::make_shared<nn::Layer>());
  for (std::int64_t i = first_layer(); i < last_layer(); ++i) {
    layers_.push_back(take<nn::LlamaLayer>(fmt::format("model.layers.{}", i)));
    layers->register_module(std::to_string(i), layers_.back());
  }
  if (is_last()) {
    norm_ = body->register_module("norm", take<nn::RmsNorm>("model.norm"));
    if (!config.tied) head_ = register_module("lm_head", take<nn::Linear>("lm_head"));
  }
  if (is_tied() && embedding_ != nullptr) {
    shared_weight_ = embedding_->parameters().front();
    shared_weight_.set_requires_grad(is_last());
    if (is_first()) whole_model_.copy = shared_weight_;
  }
}

template <typename Module>
std::shared_ptr<Module> LlamaStage::take(const std::string& name) {
  return std::dynamic_pointer_cast<Module>(whole_.named_modules("", /*include_self=*/false)[name]);
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

void LlamaStage::check_batch(const data::Batch& batch) const {
  whole_.check_inputs(batch);
  whole_.check_targets(batch);
  const std::int64_t elements = c10::multiply_integers(activation_sizes(batch));
  if (!partitions_checkpoints_ || elements % tensor_parallel().ranks() == 0) return;
  throw Error(
      fmt::format("the activations of a layer have {} elements, which {} tensor ranks cannot share "
                  "evenly: checkpoints cannot be partitioned",
                  elements, tensor_parallel().ranks()));
}

std::vector<std::int64_t> LlamaStage::activation_sizes(const data::Batch& batch) const {
  return {batch.inputs.size(0), tensor_parallel().positions(batch.inputs.size(1)), config().hidden};
}

std::int64_t LlamaStage::activation_bytes(const data::Batch& batch) const {
  return c10::multiply_integers(activation_sizes(batch)) *
         static_cast<std::int64_t>(c10::elementSize(config().dtype));
}

at::Tensor LlamaStage::empty_activations(const data::Batch& batch) const {
  return at::empty(activation_sizes(batch), batch.inputs.options().dtype(config().dtype));
}

at::Tensor LlamaStage::loss(const data::Batch& batch) {
  return run(
      [&] {
        if (pass_->adds_tied_gradient) {
          pass_->embedding = embedding_.get();
          return TiedGradient::apply(shared_weight_, batch.inputs, pass_);
        }
        const at::Tensor hidden = run_layers(batch);
        if (!is_last()) return StageEnd::apply(hidden, pass_);
        const at::Tensor all = logits(hidden);
        return nn::consuming_cross_entropy(all.view({-1, all.size(-1)}), batch.targets.reshape(-1),
                                           batch.loss_terms, tensor_parallel().axis);
      },
      {});
}

at::Tensor LlamaStage::predict(const data::Batch& batch) {
  return run(
      [&] {
        const at::Tensor hidden = run_layers(batch);
        if (!is_last()) return StageEnd::apply(hidden, pass_);
        dist::Communicator* const axis = tensor_parallel().axis;
        const at::Tensor own = logits(hidden);
        return axis == nullptr ? own : nn::gather_over_axis(own, -1, *axis, nn::Uncut::kSame);
      },
      {});
}

at::Tensor LlamaStage::input(const data::Batch& batch) {
  if (!is_first()) return pass_->input;
  at::Tensor embedded = embedding_->forward(batch.inputs);
  // The embedding is frozen here; its output's gradient is what the last stage needs.
  if (is_tied()) pass_->input = embedded.set_requires_grad(c10::GradMode::is_enabled());
  return embedded;
}

at::Tensor LlamaStage::run_layers(const data::Batch& batch) {
  at::Tensor x = input(batch);
  const nn::RotaryTable positions =
      nn::rotary_table(batch.inputs.size(1), config().head_size, config().rope_theta,
                       config().dtype, batch.inputs.device());
  for (const auto& layer : layers_) x = layer->forward(x, positions);
  return x;
}

at::Tensor LlamaStage::logits(const at::Tensor& hidden) {
  const at::Tensor x = tensor_parallel().enter(norm_->forward(hidden));
  if (head_ != nullptr) return head_->forward(x);
  if (!is_tied()) return embedding_->as_head(x);
  return TiedHead::apply(x, shared_weight_.detach(), pass_);
}

}  // namespace zero
