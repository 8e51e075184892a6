#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <zero/memory/storage.hpp>

namespace zero::memory {
namespace {

std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

// What is there before is lost.
void set_bytes(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (tensor.is_cpu()) {
    at::native::resize_bytes_cpu(storage, bytes);
  } else {
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
  }
}

}  // namespace

at::Tensor without_storage(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(dtype).device(device));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void release_storage(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous() && tensor.storage_offset() == 0 &&
                            tensor.storage().nbytes() <= bytes_of(tensor),
                        "only a tensor that spans its whole storage can give it back");
  set_bytes(tensor, 0);
}

void allocate_storage(const at::Tensor& tensor) {
  if (has_storage(tensor)) return;
  set_bytes(tensor, bytes_of(tensor));
}

bool has_storage(const at::Tensor& tensor) { return tensor.storage().nbytes() >= bytes_of(tensor); }

void place(const at::Tensor& tensor, const at::Tensor& buffer, std::int64_t offset) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous() && buffer.dim() == 1 &&
                            tensor.scalar_type() == buffer.scalar_type() &&
                            offset + tensor.numel() <= buffer.numel(),
                        "a window must lie inside its buffer and be of its dtype");
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(buffer.storage());
  tensor.unsafeGetTensorImpl()->set_storage_offset(buffer.storage_offset() + offset);
}

at::Tensor raw(const at::Tensor& tensor) { return tensor.variable_data(); }

}  // namespace zero::memory
