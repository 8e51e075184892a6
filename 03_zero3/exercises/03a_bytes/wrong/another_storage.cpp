// expects: the bytes are in another storage object
#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  const c10::Storage& storage = parameter.storage();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(std::size_t{0});
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {
  // wrong: what autograd has saved keeps the released one
  parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(values.clone().storage());
}
