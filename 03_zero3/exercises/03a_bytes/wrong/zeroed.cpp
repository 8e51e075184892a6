// expects: frees 0 of 9600 bytes: zeros take as many bytes as other numbers
#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  parameter.variable_data().zero_();  // wrong: the bytes are still there
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {
  parameter.variable_data().copy_(values);
}
