#include "08f.hpp"

using exercise_08f::Gradients;
using exercise_08f::Half;
using exercise_08f::Kept;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

at::Tensor forward(const Half& half, const at::Tensor& x, Kept& kept, Communicator& axis) {
  kept.entered = x * half.scale;
  kept.inner = kept.entered.mm(half.first).relu();
  const at::Tensor output = kept.inner.mm(half.second);
  axis.all_reduce(output, Purpose::kActivation, ReduceOp::kSum).wait();
  return x + output;
}

Gradients backward(const Half& half, const at::Tensor& x, const Kept& kept, const at::Tensor& delta,
                   Communicator& axis) {
  const at::Tensor second = kept.inner.t().mm(delta);
  const at::Tensor of_inner = delta.mm(half.second.t()) * (kept.inner > 0);
  const at::Tensor first = kept.entered.t().mm(of_inner);
  const at::Tensor of_entered = of_inner.mm(half.first.t());
  axis.all_reduce(of_entered, Purpose::kActivation, ReduceOp::kSum).wait();
  return {delta + of_entered * half.scale, (of_entered * x).sum(0), first, second};
}
