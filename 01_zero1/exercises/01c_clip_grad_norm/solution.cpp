#include "01c.hpp"

using zero::dist::Purpose;
using zero::dist::ReduceOp;
using zero::train::Strategy;

namespace {

// The gradient of parameter i if this rank owns it and any rank used it, else undefined.
at::Tensor owned_gradient(const Strategy& strategy, std::size_t i) {
  return strategy.owns(i) ? strategy.placement(i).updated.tensor.grad() : at::Tensor();
}

}  // namespace

float clip_grad_norm(Strategy& strategy, double max_norm) {
  const std::size_t count = strategy.list().size();
  // One number a parameter. One rank owns each, so the others add zeros to it, which is exact.
  at::Tensor squares = at::zeros({static_cast<std::int64_t>(count)}, at::kDouble);
  auto* square = squares.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined()) square[i] = zero::optim::squared_norm(gradient);
  }
  strategy.communicator().all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  const auto norm = static_cast<float>(zero::optim::norm_from_squares({square, square + count}));
  const float coefficient = zero::optim::clip_coefficient(norm, max_norm);
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined() && coefficient != 1) gradient.mul_(coefficient);
  }
  return norm;
}
