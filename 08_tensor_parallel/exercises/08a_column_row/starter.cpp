#include "08a.hpp"

using exercise_08a::Gradients;
using exercise_08a::Pair;
using exercise_08a::with_ones;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

Pair part_of(const Pair& whole, int rank, int ranks) { return whole; }

at::Tensor forward(const Pair& part, const at::Tensor& x, at::Tensor& inner, Communicator& axis) {
  inner = with_ones(x, 1).mm(part.first).relu();
  return with_ones(inner, 1).mm(part.second);
}

Gradients backward(const Pair& part, const at::Tensor& x, const at::Tensor& inner,
                   const at::Tensor& delta, Communicator& axis) {
  const at::Tensor second = with_ones(inner, 1).t().mm(delta);
  // Without the last row: nothing is in front of the bias.
  const at::Tensor of_inner = delta.mm(part.second.narrow(0, 0, inner.size(1)).t()) * (inner > 0);
  const at::Tensor first = with_ones(x, 1).t().mm(of_inner);
  const at::Tensor of_x = of_inner.mm(part.first.narrow(0, 0, x.size(1)).t());
  return {of_x, {first, second}};
}
