#include "tensor_zero2.hpp"

namespace zero {

TensorZero2::TensorZero2(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/false), order_(backward_groups()) {}

void TensorZero2::group_ready(std::size_t group) {
  // Without a reduction gradients stay in the buffer and the next micro-batch adds to them.
  if (!reduces_now()) return;
  order_.ready(group, [this](std::size_t g) { reduce(g, /*keep_full=*/false); });
}

void TensorZero2::finish_backward() {
  forget_arrivals();
  if (!reduces_now()) return;
  // Groups that this rank's batch did not use in full; other ranks may have.
  order_.finish([this](std::size_t g) { reduce(g, /*keep_full=*/false); });
  complete_reduction();
}

void TensorZero2::zero_grad() {
  order_.forget();  // it is new already, unless a backward pass was given up
  TensorSharding::zero_grad();
}

void TensorZero2::sync_parameters() { gather_updated(); }

train::ModelStateBytes TensorZero2::predicted_bytes() const {
  const std::int64_t n = communicator_.size();
  return {n * shard_bytes(/*trainable_only=*/false), gradient_shard_bytes(), optimizer_bytes()};
}

std::int64_t TensorZero2::predicted_traffic() const {
  return (communicator_.size() - 1) *
         (reduced_shard_bytes() + shard_bytes(/*trainable_only=*/true));
}

}  // namespace zero
