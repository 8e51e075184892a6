#include "tensor_zero2.hpp"

namespace zero {

TensorZero2::TensorZero2(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kGradients}) {
  reduce_in_backward(flat_.items(), [this](std::size_t b) { reduce(b); });
}

}  // namespace zero
