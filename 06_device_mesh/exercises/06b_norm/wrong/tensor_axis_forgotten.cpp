// expects: ranks 0 and 1 have different norms: they differ in their place on the tensor axis
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
  // wrong: other tensor ranks have other parts
  data.all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  return std::sqrt(squares.sum().item<double>());
}
