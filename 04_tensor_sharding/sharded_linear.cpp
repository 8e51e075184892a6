#include "sharded_linear.hpp"

#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero {

using dist::Purpose;
using memory::Category;
using memory::Charge;

ShardedParameter::ShardedParameter(const at::Tensor& whole, dist::Communicator& communicator)
    : communicator_(communicator),
      sizes_(whole.sizes().vec()),
      layout_({whole.numel()}, communicator.size()),
      full_(memory::without_storage({layout_.total()}, whole.scalar_type())) {
  const Charge charge(Category::kParameters);
  shard_ = at::zeros({layout_.shard()}, whole.options());
  const auto mine = layout_.range(0, communicator.rank());
  shard_.narrow(0, 0, mine.size).copy_(whole.flatten().narrow(0, mine.begin, mine.size));
}

at::Tensor ShardedParameter::gather() {
  if (!whole_) {
    const Charge charge(Category::kParameters);
    memory::allocate_storage(full_);
    communicator_.all_gather(full_, shard_, Purpose::kParameter).wait();
    whole_ = true;
  }
  return full_.narrow(0, 0, layout_.size(0)).view(sizes_);
}

void ShardedParameter::release() {
  if (!whole_) return;
  memory::release_storage(full_);
  whole_ = false;
}

void ShardedParameter::reduce(const at::Tensor& gradient) {
  const Charge charge(Category::kGradients);
  // The reduce-scatter takes the padded buffer; zeros, so that padding stays zero.
  at::Tensor buffer = at::zeros({layout_.total()}, shard_.options());
  buffer.narrow(0, 0, layout_.size(0)).copy_(gradient.flatten());
  at::Tensor average = at::empty_like(shard_);
  communicator_.reduce_scatter(average, buffer, Purpose::kGradient).wait();
  gradient_ = gradient_.defined() ? gradient_.add_(average) : average;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ShardedLinearFunction : torch::autograd::Function<ShardedLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& one,
                            ShardedLinear* layer) {
    // Saved is the input alone. Were it the weight, autograd would keep it whole until backward.
    context->save_for_backward({x});
    // saved_data takes tensors and plain values (IValue), so the layer goes in as its address.
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    const at::Tensor y = at::linear(x, layer->weight().gather(), layer->bias().gather());
    layer->weight().release();
    layer->bias().release();
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto* layer = reinterpret_cast<ShardedLinear*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor gradient = gradients[0].reshape({-1, gradients[0].size(-1)});
    layer->weight().reduce(gradient.t().mm(x.reshape({-1, x.size(-1)})));
    layer->bias().reduce(gradient.sum(0));
    // Gathered again, for this one product.
    const at::Tensor of_input = gradient.mm(layer->weight().gather()).view(x.sizes());
    layer->weight().release();
    // `one` and the layer itself have no gradient.
    return {of_input, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

ShardedLinear::ShardedLinear(const at::Tensor& weight, const at::Tensor& bias,
                             dist::Communicator& communicator)
    : weight_(weight, communicator), bias_(bias, communicator) {}

at::Tensor ShardedLinear::forward(const at::Tensor& x) {
  // The shards are no arguments of the function, so something else must tell autograd that there
  // is a gradient to compute even where x needs none.
  const at::Tensor one = at::zeros({}, x.options()).requires_grad_();
  return ShardedLinearFunction::apply(x, one, this);
}

}  // namespace zero
