#include "host_views.hpp"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <string>

#include "accelerator.hpp"
#include "device_memory.hpp"

namespace zero::testing::emulated {
namespace {

// What a view of a storage holds.
class Opened {
 public:
  explicit Opened(const c10::Storage& storage) : storage_(storage), bytes_(storage.mutable_data()) {
    DeviceMemory::get().open(bytes_);
  }
  ~Opened() { DeviceMemory::get().close(bytes_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  void* bytes() const { return bytes_; }

 private:
  c10::Storage storage_;
  void* bytes_;
};

c10::DataPtr opened(const c10::Storage& storage) {
  auto* const holder = new Opened(storage);
  return {holder->bytes(), holder, [](void* h) { delete static_cast<Opened*>(h); },
          c10::Device(c10::kCPU)};
}

}  // namespace

Access access_to(const at::Tensor& tensor, bool writes) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const std::size_t bytes =
      tensor.numel() == 0 ? 0 : static_cast<std::size_t>(last + 1) * tensor.element_size();
  // Throws if the bytes were released.
  return {bytes == 0 ? nullptr : tensor.const_data_ptr(), bytes, writes};
}

namespace {

// Copies what a tensor of the CPU spans to one of the device.
void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const std::size_t bytes = access_to(to, /*writes=*/true).bytes;
  if (bytes == 0) return;
  const Opened there(to.storage());
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), bytes);
}

}  // namespace

c10::Storage HostViews::storage_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {c10::Storage::use_byte_size_t(), 0, c10::GetCPUAllocator(), /*resizable=*/true};
  }
  const c10::Storage& storage = tensor.storage();
  c10::Storage& view = storages_[storage.unsafeGetStorageImpl()];
  if (!view) {
    view = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), opened(storage),
                        c10::GetCPUAllocator(), /*resizable=*/true);
  }
  return view;
}

at::Tensor HostViews::of(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || tensor.device().type() != kDevice.type()) return tensor;
  for (const Pair& pair : pairs_) {
    if (!pair.device.is_same(tensor)) continue;
    if (writes) accesses_[pair.access].writes = true;
    return pair.view;
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      storage_of(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  pairs_.push_back({tensor, view, accesses_.size()});
  accesses_.push_back(access_to(tensor, writes));
  return view;
}

at::Tensor HostViews::on_device(const at::Tensor& result) {
  if (!result.defined()) return result;
  for (const Pair& pair : pairs_) {
    if (pair.view.is_same(result)) return pair.device;
  }
  for (const Pair& pair : pairs_) {
    if (pair.view.is_alias_of(result)) {
      return pair.device.as_strided(result.sizes(), result.strides(), result.storage_offset());
    }
  }
  at::Tensor tensor = at::empty_strided(result.sizes(), result.strides(),
                                        result.options().device(kDevice).pinned_memory(false));
  copy_bytes(result, tensor);
  return tensor;
}

void HostViews::take_over_sizes() {
  for (const Pair& pair : pairs_) {
    if (pair.device.sizes() == pair.view.sizes()) continue;
    pair.device.resize_(pair.view.sizes());
    copy_bytes(pair.view, pair.device);
  }
}

at::Tensor host_view(const at::Tensor& tensor, bool writes, const std::string& operation) {
  HostViews views;
  const at::Tensor view = views.of(tensor, writes);
  Checker::get().host_access(views.accesses(), operation);
  return view;
}

}  // namespace zero::testing::emulated
