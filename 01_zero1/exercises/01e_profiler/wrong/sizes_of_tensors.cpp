// expects: the weight that two layers share is counted twice
#include "01e.hpp"

using exercise_01e::Bytes;

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    bytes += static_cast<std::int64_t>(tensor.nbytes());  // wrong: tensors may share memory
  }
  return bytes;
}

Bytes held_bytes(const std::vector<at::Tensor>& parameters,
                 const std::vector<at::Tensor>& moments) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return {bytes_of(parameters), bytes_of(gradients), bytes_of(moments)};
}

Bytes formula_bytes(std::int64_t parameters, std::int64_t trainable, std::int64_t owned) {
  return {4 * parameters, 4 * trainable, 8 * owned};
}
