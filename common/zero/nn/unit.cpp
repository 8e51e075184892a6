#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <memory>

#include <zero/nn/before_backward.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {
namespace {

// The operation of the last output becomes the last one of the unit, so that its backward comes
// before that of what leaves the unit otherwise, such as a loss of its own. `began`: the number of
// the unit's first operation.
void put_last(const std::vector<at::Tensor>& outputs, std::uint64_t began) {
  torch::autograd::Node* last = nullptr;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    torch::autograd::Node* const node = output.grad_fn().get();
    if (last == nullptr || node->sequence_nr() > last->sequence_nr()) last = node;
  }
  if (last == nullptr || last->sequence_nr() < began) return;  // of another unit
  if (last->sequence_nr() + 1 == at::sequence_number::peek()) return;
  last->set_sequence_nr(at::sequence_number::get_and_increment());
}

// Has pre_backward() called for these outputs of one use of the unit.
void watch(Unit& unit, const std::vector<at::Tensor>& outputs) {
  const auto begins = [&unit, pass = std::make_shared<OnceInAPass>()] {
    if (pass->first() && unit.hooks() != nullptr) unit.hooks()->pre_backward(unit);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    before_backward(output, begins);
    // An operation that changes a view in place takes the place of the view's own, after that of
    // its base.
    if (output.is_view() && output._base().grad_fn()) before_backward(output._base(), begins);
  }
}

}  // namespace

at::Tensor Unit::run(const std::function<at::Tensor()>& body) {
  return run_many([&] { return std::vector<at::Tensor>{body()}; }).front();
}

std::vector<at::Tensor> Unit::run_many(const std::function<std::vector<at::Tensor>()>& body) {
  if (hooks_ == nullptr) return body();
  hooks_->pre_forward(*this);
  const std::uint64_t began = at::sequence_number::peek();
  std::vector<at::Tensor> outputs = body();
  hooks_->post_forward(*this);
  if (c10::GradMode::is_enabled()) {
    for (at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      // An input that is handed on, or a leaf, gets an operation of this unit: ranks on which it
      // does nothing call its hooks in the same order as others.
      if (output.is_leaf() || output.grad_fn()->sequence_nr() < began) {
        output = output.view_as(output);
      }
    }
    put_last(outputs, began);
    watch(*this, outputs);
  }
  return outputs;
}

}  // namespace zero::nn
