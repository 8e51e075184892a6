#include "tensor_zero1.hpp"

namespace zero {

TensorZero1::TensorZero1(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, /*split=*/false),
      naive_(arguments.variant == "naive"),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach) {}

void TensorZero1::finish_backward() {
  forget_arrivals();
  if (!reduces_now()) return;
  for (const std::size_t g : backward_groups()) {
    // Where every micro-batch is reduced, the average must leave the buffer: the next micro-batch
    // writes its gradients there.
    const bool keep_full = !reduce_each_;
    if (naive_) {
      if (note_members(g)) groups()[g].all_reduce(keep_full);
    } else {
      reduce(g, keep_full);
    }
  }
  complete_reduction();
}

void TensorZero1::sync_parameters() { gather_updated(); }

train::ModelStateBytes TensorZero1::predicted_bytes() const {
  const std::int64_t n = communicator_.size();
  return {n * shard_bytes(/*trainable_only=*/false),
          reduce_each_ ? gradient_shard_bytes() : n * shard_bytes(/*trainable_only=*/true),
          optimizer_bytes()};
}

std::int64_t TensorZero1::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  return others * ((naive_ ? 2 : 1) * reduced_shard_bytes() + shard_bytes(/*trainable_only=*/true));
}

}  // namespace zero
