// What a strategy says of bytes and of the scale of gradients.
#include <ATen/ops/zeros.h>

#include <cmath>

#include <zero/optim/norm.hpp>
#include <zero/train/strategy.hpp>

namespace zero::train {

using dist::Purpose;

void Strategy::set_gradient_scale(double scale) {
  optimizer_->set_gradient_scale(scale);
  gradient_scale_ = scale;
}

std::vector<int> Strategy::ranks_with_overflow() {
  at::Tensor flags = at::zeros({communicator_.size()}, at::kInt);
  auto* flag = flags.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count(); ++i) {
    const Piece mine = piece(i);
    if (!mine.tensor.defined() || !mine.tensor.grad().defined()) continue;
    // One infinity or NaN makes the sum one; finite squares add up to something finite in double.
    if (!std::isfinite(optim::squared_norm(mine.tensor.grad()))) flag[communicator_.rank()] = 1;
  }
  // A sum of flags: a maximum over the gradients themselves would lose a NaN or not, depending on
  // which rank has it.
  communicator_.all_reduce(flags, Purpose::kControl, dist::ReduceOp::kSum).wait();
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (flag[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

std::int64_t Strategy::trainable_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i)) sum += list_.parameters[i].bytes();
  }
  return sum;
}

std::int64_t Strategy::optimizer_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    const at::Tensor mine = piece(i).tensor;
    if (!mine.defined()) continue;
    if (trainable(i) || optimizer_->steps(mine) > 0) sum += optimizer_->state_bytes(mine);
  }
  return sum;
}

std::int64_t Strategy::reduced_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i)) sum += reduced_bytes_of(i);
  }
  return sum;
}

std::int64_t Strategy::reduced_owned_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i) && owns(i)) sum += reduced_bytes_of(i);
  }
  return sum;
}

std::int64_t Strategy::reduced_bytes_of(std::size_t index) const {
  return parameter(index).numel() *
         communicator_.reduced_element_size(parameter(index).scalar_type());
}

}  // namespace zero::train
