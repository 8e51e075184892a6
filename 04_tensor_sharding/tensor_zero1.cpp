#include "tensor_zero1.hpp"

namespace zero {

TensorZero1::TensorZero1(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kOptimizer,
                                 .all_reduces = arguments.variant == "naive"}) {}

void TensorZero1::finish_backward() {
  if (!reduces_now()) return;
  for (std::size_t b = flat_.size(); b-- > 0;) {
    if (any_trainable(flat_[b].members())) reduce(b);
  }
  Strategy::finish_backward();
}

}  // namespace zero
