#include "operations.hpp"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstring>
#include <limits>

#include "accelerator.hpp"
#include "checker.hpp"
#include "device_memory.hpp"
#include "host_views.hpp"
#include "streams.hpp"

namespace zero::testing::emulated {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &DeviceMemory::get(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &DeviceMemory::get(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<std::size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, &DeviceMemory::get(),
                             /*resizable=*/true);
  return self.set_(nothing, 0, {0}, {});
}

void poison(const at::Tensor& tensor) {
  if (at::isFloatingType(tensor.scalar_type())) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    tensor.fill_(-1);
  }
}

// The result arrives on the host when the host has waited for this stream.
void copy_to_host_later(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor staged = at::empty_like(to);
  staged.copy_(from);
  // The host does not use it: a copy before this one may not have arrived.
  const at::DisableRecordFunctionGuard unseen;
  poison(to);
  Checker::get().deliver(current_stream(), to, staged);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  HostViews views;
  const at::Tensor from = Checker::get().in_stream_order(current_stream(), views.of(self, false));
  const at::Tensor into = views.of(to, true);
  Checker::get().launch(current_stream(), views.accesses(), "copy_");
  if (to.is_cpu() && non_blocking) {
    copy_to_host_later(from, to);
    return to;
  }
  into.copy_(from);
  const bool within_device = !self.is_cpu() && !to.is_cpu();
  if (!within_device && !non_blocking) Checker::get().synchronize(current_stream());
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  HostViews views;
  const at::Tensor view = views.of(self, false);
  Checker::get().launch(current_stream(), views.accesses(), "item");
  Checker::get().synchronize(current_stream());
  return view.item();
}

// So that a parameter can move to the device: Module::to() calls set_data().
bool can_take_data_of(const at::Tensor&, const at::Tensor& from) {
  return from.layout() == at::kStrided;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  DeviceMemory::get().recordStream(self.storage().data_ptr(), stream);
}

// The attention that the CPU would take.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask,
                              double dropout, bool causal, std::optional<double> scale,
                              bool grouped) {
  HostViews views;
  const auto view = [&](const at::Tensor& t) {
    return views.of(t, false).requires_grad_(t.requires_grad());
  };
  std::optional<at::Tensor> mask_view;
  if (mask) mask_view = view(*mask);
  return at::_fused_sdp_choice(view(query), view(key), view(value), mask_view, dropout, causal,
                               scale, grouped);
}

}  // namespace

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  c10::DataPtr grown = DeviceMemory::get().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    const void* const from = storage.data();
    for (const void* const address : {from, static_cast<const void*>(grown.get())}) {
      DeviceMemory::get().open(address);
    }
    std::memcpy(grown.get(), from, kept);
    DeviceMemory::get().close(from);
    DeviceMemory::get().close(grown.get());
    Checker::get().launch(current_stream(), {{from, kept, false}, {grown.get(), kept, true}},
                          "resize_");
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

void register_operations() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("resize_", TORCH_FN(resize));
  aten.impl("set_", TORCH_FN(set_to_nothing));
  aten.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  aten.impl("set_.source_Storage",
            TORCH_FN(static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_)));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(can_take_data_of));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  register_fused_operations();
  register_fallback();
}

}  // namespace zero::testing::emulated
