// expects: the version counter has risen by 1
#include "03a.hpp"

void release_bytes(const at::Tensor& parameter) {
  const c10::Storage& storage = parameter.storage();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(std::size_t{0});
}

void restore_bytes(const at::Tensor& parameter, const at::Tensor& values) {
  const c10::Storage& storage = parameter.storage();
  const std::size_t bytes = parameter.numel() * parameter.element_size();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
  const at::NoGradGuard no_grad;
  parameter.copy_(values);  // wrong: counted, although autograd records nothing
}
