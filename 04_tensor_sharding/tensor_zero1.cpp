#include "tensor_zero1.hpp"

namespace zero {

TensorZero1::TensorZero1(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kOptimizer,
                                 .all_reduces = arguments.variant == "naive"}) {
  reduce_after_backward(flat_.items(), [this](std::size_t b) { reduce(b); });
}

}  // namespace zero
