// expects: frees 0 of 9600 bytes: autograd has saved the tensor
#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  // wrong: what autograd has saved keeps the old storage
  parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(at::empty({0}).storage());
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {
  parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(values.clone().storage());
}
