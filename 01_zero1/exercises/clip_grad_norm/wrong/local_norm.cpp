// A wrong answer that the tests must notice: each rank clips by the norm of what it owns.
#include <ATen/ops/zeros.h>

#include <01_zero1/exercises/clip_grad_norm/clip_grad_norm.hpp>
#include <zero/optim/norm.hpp>

namespace {

using zero::train::Strategy;

// The gradient of parameter i if this rank owns it and anybody used it, else undefined.
at::Tensor owned_gradient(const Strategy& strategy, std::size_t i) {
  return strategy.owns(i) ? strategy.piece(i).tensor.grad() : at::Tensor();
}

}  // namespace

float clip_grad_norm(Strategy& strategy, double max_norm) {
  const std::size_t count = strategy.list().size();

  at::Tensor squares = at::zeros({static_cast<std::int64_t>(count)}, at::kDouble);
  auto* square = squares.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined()) square[i] = zero::optim::squared_norm(gradient);
  }
  const float norm = zero::optim::norm_from_squares({square, square + count});
  const float coefficient = zero::optim::clip_coefficient(norm, max_norm);
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined() && coefficient != 1.0F) gradient.mul_(coefficient);
  }
  return norm;
}
