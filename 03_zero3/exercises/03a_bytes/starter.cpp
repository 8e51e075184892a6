#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  // parameter.storage() returns a c10::Storage, a handle to the object that has the bytes.
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {}
