// expects: the parts of a split gradient are averaged over the tensor axis
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
  // wrong: right for what is not split, and wrong for parts
  tensor.all_reduce(squares, Purpose::kControl, ReduceOp::kAverage).wait();
  return std::sqrt(squares.sum().item<double>());
}
