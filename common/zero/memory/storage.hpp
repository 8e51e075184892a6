#pragma once

#include <torch/types.h>

#include <string>

/// Frees the bytes of a tensor and allocates them again, in place.
///
/// Autograd saves parameters for the backward pass by reference. If the bytes return in the same
/// storage object, what it saved stays valid, however often they were freed in between (FSDP does
/// the same). The tensor keeps its sizes and strides, and its storage reports its full size, so
/// that views can be made of it. Access to freed bytes throws c10::Error.
namespace zero::memory {

/// Returns a contiguous tensor of these sizes without bytes: a parameter that has only its shape
/// yet.
at::Tensor without_storage(at::IntArrayRef sizes, at::ScalarType dtype,
                           at::Device device = at::kCPU);

/// The default message of that error.
inline constexpr const char* kReleased =
    "the bytes of this tensor are not there: a parameter gets them from a strategy, or from "
    "nn::initialize_parameters()";

/// Frees the bytes under `tensor`, which must span its whole storage. Until allocate_storage() or
/// borrow_storage(), every access to them, also through a view, throws c10::Error with `message`.
void release_storage(const at::Tensor& tensor, const std::string& message = kReleased);

/// Allocates bytes for `tensor` again, uninitialised, charged to the category of the current scope.
/// Does nothing if it has its bytes.
void allocate_storage(const at::Tensor& tensor);

/// Gives `tensor` a storage object of its own, without bytes, as after release_storage(). Other
/// tensors keep the old one. Not for a tensor that autograd has saved.
void separate_storage(const at::Tensor& tensor, const std::string& message = kReleased);

/// Lets the storage of `tensor`, which must span it, use the bytes of `lender` (contiguous, of the
/// same size) until release_storage(). Allocates nothing. The lender's storage lives as long as it
/// is borrowed.
void borrow_storage(const at::Tensor& tensor, const at::Tensor& lender);

/// False from release_storage() until bytes are allocated or borrowed. True for 0 elements.
bool has_storage(const at::Tensor& tensor);

/// True from release_storage() until bytes are allocated or borrowed, also for a view.
bool is_released(const at::Tensor& tensor);

/// Makes `tensor` a window of `buffer` (flat, same dtype) that begins at element `offset`, and
/// frees its own bytes. The tensor keeps its sizes and its identity, so modules and autograd still
/// hold it. Releasing or allocating the buffer's storage does the same to the window.
void place(const at::Tensor& tensor, const at::Tensor& buffer, std::int64_t offset);

/// Call after place() with the storage that the tensor had before. If other tensors still share it,
/// such as views, they would not follow the tensor: frees the bytes, and every access to them
/// throws c10::Error with `message`.
void abandon(const at::Storage& storage, const std::string& message);

/// A tensor over the same bytes below autograd: writing into it neither records an operation nor
/// raises the version counter, so tensors saved for backward stay valid.
at::Tensor raw(const at::Tensor& tensor);

namespace detail {

/// Replaces the bytes under `tensor` by `bytes`.
void set_bytes(const at::Tensor& tensor, at::DataPtr bytes);
/// Takes the bytes of `tensor` as release_storage() does, but returns them instead of freeing them.
at::DataPtr take_bytes(const at::Tensor& tensor, const std::string& message);

}  // namespace detail

}  // namespace zero::memory
