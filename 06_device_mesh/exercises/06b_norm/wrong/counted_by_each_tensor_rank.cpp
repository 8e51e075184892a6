// expects: a gradient that is not split counts 2 times, once for each tensor rank
#include "06b.hpp"

using exercise_06b::Gradient;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

double gradient_norm(const std::vector<Gradient>& gradients, Communicator& data,
                     Communicator& tensor) {
  at::Tensor squares = at::zeros({2}, at::kDouble);  // of what is split, and of what is not
  for (const Gradient& gradient : gradients) {
    squares[gradient.is_split ? 0 : 1] += gradient.shard.to(at::kDouble).square().sum();
  }
  data.all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  // wrong: what is not split is added as well
  tensor.all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  return std::sqrt(squares.sum().item<double>());
}
