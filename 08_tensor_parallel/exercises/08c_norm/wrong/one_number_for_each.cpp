// expects: two doubles on each axis are enough: squares, not gradients
#include "08c.hpp"

using exercise_08c::Gradient;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

double gradient_norm(const std::vector<Gradient>& gradients, Communicator& data,
                     Communicator& tensor) {
  // wrong: right, but it sends as many numbers as there are parameters
  at::Tensor squares = at::zeros({static_cast<std::int64_t>(gradients.size())}, at::kDouble);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    squares[static_cast<std::int64_t>(i)] += gradients[i].shard.to(at::kDouble).square().sum();
  }
  data.all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  tensor.all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  double sum = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double square = squares[static_cast<std::int64_t>(i)].item<double>();
    sum += gradients[i].is_split ? square : square / tensor.size();
  }
  return std::sqrt(sum);
}
