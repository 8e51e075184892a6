#include "tensor_zero2.hpp"

namespace zero {

TensorZero2::TensorZero2(const train::StrategyArguments& arguments)
    : TensorSharding(arguments, {.sharded = train::Sharded::kGradients}),
      schedule_(list(), flat_.items(), {.reduce = [this](std::size_t b) { reduce(b); }}) {}

void TensorZero2::gradient_ready(std::size_t index) {
  TensorSharding::gradient_ready(index);
  schedule_.gradient_ready(index);
}

void TensorZero2::finish_backward() {
  if (!reduces_now()) return;
  schedule_.reduce_rest();
  complete_reduction();
}

void TensorZero2::zero_grad() {
  schedule_.give_up();
  TensorSharding::zero_grad();
}

}  // namespace zero
