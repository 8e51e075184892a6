#include "08c.hpp"

using exercise_08c::Gradient;
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
  // Each tensor rank has all that is not split already.
  tensor.all_reduce(squares.narrow(0, 0, 1), Purpose::kControl, ReduceOp::kSum).wait();
  return std::sqrt(squares.sum().item<double>());
}
