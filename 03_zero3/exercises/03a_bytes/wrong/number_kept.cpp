// expects: the storage still says 9600 bytes, and has none
#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  const c10::Storage& storage = parameter.storage();
  // wrong: the number of bytes stays
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {
  const c10::Storage& storage = parameter.storage();
  const std::size_t bytes = parameter.numel() * parameter.element_size();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  parameter.variable_data().copy_(values);
}
