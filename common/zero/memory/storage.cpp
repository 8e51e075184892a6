#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <utility>

#include <zero/memory/storage.hpp>

namespace zero::memory {
namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
// LibTorch 2.11 can make a storage refuse access, but has no function that allows it again. An
// explicit instantiation may name a private member.
bool c10::StorageImpl::*refuses_access();
template <bool c10::StorageImpl::*member>
struct RefusesAccess {
  friend bool c10::StorageImpl::*refuses_access() { return member; }
};
template struct RefusesAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

void allow_access(c10::StorageImpl* storage) {
  storage->*refuses_access() = false;
  storage->get_extra_meta().custom_data_ptr_error_msg_.reset();
}
#else
void allow_access(c10::StorageImpl* storage) { storage->clear_data_ptr_access_error_msg_(); }
#endif

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool spans_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() <= tensor.nbytes();
}

void end_borrowing(void* storage) { delete static_cast<c10::Storage*>(storage); }

}  // namespace

void detail::set_bytes(const at::Tensor& tensor, at::DataPtr bytes) {
  c10::StorageImpl* const storage = storage_of(tensor);
  allow_access(storage);
  storage->set_data_ptr_noswap(std::move(bytes));  // notes that access is allowed, too
  storage->set_nbytes(tensor.nbytes());
}

at::DataPtr detail::take_bytes(const at::Tensor& tensor, const std::string& message) {
  TORCH_INTERNAL_ASSERT(spans_storage(tensor),
                        "only a tensor that spans its whole storage can give it back");
  c10::StorageImpl* const storage = storage_of(tensor);
  at::DataPtr bytes(nullptr, storage->device());
  std::swap(bytes, storage->_mutable_data_ptr_no_checks());
  storage->set_nbytes(tensor.nbytes());
  // Despite its name, all that the function does is to set the message.
  if (tensor.numel() > 0) {
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  }
  return bytes;
}

at::Tensor without_storage(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(dtype).device(device));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  release_storage(tensor);
  return tensor;
}

void release_storage(const at::Tensor& tensor, const std::string& message) {
  detail::take_bytes(tensor, message);
}

void allocate_storage(const at::Tensor& tensor) {
  if (has_storage(tensor)) return;
  detail::set_bytes(tensor, storage_of(tensor)->allocator()->allocate(tensor.nbytes()));
}

void separate_storage(const at::Tensor& tensor, const std::string& message) {
  c10::StorageImpl* const old = storage_of(tensor);
  // Bytes that came from elsewhere, as from a file, have none.
  c10::Allocator* const allocator =
      old->allocator() != nullptr ? old->allocator() : c10::GetAllocator(old->device_type());
  c10::Storage own(c10::Storage::use_byte_size_t(), tensor.nbytes(),
                   at::DataPtr(nullptr, old->device()), allocator, /*resizable=*/true);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(own));
  tensor.unsafeGetTensorImpl()->set_storage_offset(0);
  release_storage(tensor, message);
}

void borrow_storage(const at::Tensor& tensor, const at::Tensor& lender) {
  TORCH_INTERNAL_ASSERT(
      spans_storage(tensor) && lender.is_contiguous() && tensor.nbytes() == lender.nbytes(),
      "bytes can be borrowed by a tensor of the same size only");
  auto storage = std::make_unique<c10::Storage>(lender.storage());
  void* const bytes = lender.mutable_data_ptr();
  detail::set_bytes(tensor, at::DataPtr(bytes, storage.release(), &end_borrowing, lender.device()));
}

bool is_released(const at::Tensor& tensor) {
  return storage_of(tensor)->get_extra_meta().custom_data_ptr_error_msg_.has_value();
}

bool has_storage(const at::Tensor& tensor) {
  return !is_released(tensor) && tensor.storage().nbytes() >= tensor.nbytes();
}

void place(const at::Tensor& tensor, const at::Tensor& buffer, std::int64_t offset) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous() && buffer.dim() == 1 &&
                            tensor.scalar_type() == buffer.scalar_type() &&
                            offset + tensor.numel() <= buffer.numel(),
                        "a window must lie inside its buffer and be of its dtype");
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(buffer.storage());
  tensor.unsafeGetTensorImpl()->set_storage_offset(buffer.storage_offset() + offset);
}

void abandon(const at::Storage& storage, const std::string& message) {
  if (storage.use_count() <= 1) return;
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(at::DataPtr(nullptr, impl->device()));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

at::Tensor raw(const at::Tensor& tensor) { return tensor.variable_data(); }

}  // namespace zero::memory
