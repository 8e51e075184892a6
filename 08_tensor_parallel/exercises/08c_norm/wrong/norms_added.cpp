// expects: norms were added and not their squares
#include "08c.hpp"

using exercise_08c::Gradient;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

double gradient_norm(const std::vector<Gradient>& gradients, Communicator& data,
                     Communicator& tensor) {
  at::Tensor norms = at::zeros({2}, at::kDouble);
  for (const Gradient& gradient : gradients) {
    // wrong: norms do not add
    norms[gradient.is_split ? 0 : 1] += gradient.shard.to(at::kDouble).square().sum().sqrt();
  }
  data.all_reduce(norms, Purpose::kControl, ReduceOp::kSum).wait();
  tensor.all_reduce(norms.narrow(0, 0, 1), Purpose::kControl, ReduceOp::kSum).wait();
  return norms.sum().item<double>();
}
