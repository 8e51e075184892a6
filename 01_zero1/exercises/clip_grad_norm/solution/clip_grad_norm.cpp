#include <ATen/ops/zeros.h>

#include <01_zero1/exercises/clip_grad_norm/clip_grad_norm.hpp>
#include <zero/distributed/communicator.hpp>
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

  // One number a parameter. Exactly one rank owns each, so all others contribute a 0 to its sum,
  // and adding zeros is exact: every rank ends with the numbers that DDP has.
  at::Tensor squares = at::zeros({static_cast<std::int64_t>(count)}, at::kDouble);
  auto* square = squares.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined()) square[i] = zero::optim::squared_norm(gradient);
  }
  strategy.communicator()
      .all_reduce(squares, zero::dist::Purpose::kControl, zero::dist::ReduceOp::kSum)
      .wait();

  const float norm = zero::optim::norm_from_squares({square, square + count});
  const float coefficient = zero::optim::clip_coefficient(norm, max_norm);
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor gradient = owned_gradient(strategy, i);
    if (gradient.defined() && coefficient != 1.0F) gradient.mul_(coefficient);
  }
  return norm;
}
