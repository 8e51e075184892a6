#pragma once

#include <torch/types.h>

#include <string>

/// Taking the bytes away from a tensor and giving them back, in place.
///
/// Autograd saves parameters for the backward pass by reference. If the bytes come back in the same
/// storage object, what it saved stays valid, however often they went away in between (FSDP does
/// the same). The tensor keeps its sizes and strides all the time, and its storage says its full
/// size, so that views can be made of it. An access to bytes that are not there throws c10::Error.
namespace zero::memory {

/// A contiguous tensor of these sizes without bytes: a parameter that knows its shape and holds
/// nothing yet.
at::Tensor without_storage(at::IntArrayRef sizes, at::ScalarType dtype,
                           at::Device device = at::kCPU);

/// What the error says where nothing better is known.
inline constexpr const char* kReleased =
    "the bytes of this tensor are not there: a parameter gets them from a strategy, or from "
    "nn::initialize_parameters()";

/// Frees the bytes under `tensor`, which must span its whole storage. Until allocate_storage() or
/// borrow_storage() every access to them, also through a view, is a c10::Error that says `message`.
void release_storage(const at::Tensor& tensor, const std::string& message = kReleased);

/// Gives `tensor` its bytes again, uninitialised, charged to the category of the current scope.
/// Does nothing when they are there.
void allocate_storage(const at::Tensor& tensor);

/// Gives `tensor` a storage object of its own, without bytes, as after release_storage(). Its old
/// one stays with the other tensors over it. Not for a tensor that autograd has saved.
void separate_storage(const at::Tensor& tensor, const std::string& message = kReleased);

/// Makes the bytes of `lender` (contiguous, of the same size) those of the storage of `tensor`,
/// which must span it, until release_storage(). Nothing is allocated. The storage of the lender
/// lives on for as long as it is borrowed.
void borrow_storage(const at::Tensor& tensor, const at::Tensor& lender);

/// False between release_storage() and allocate_storage(). True for a tensor of 0 elements.
bool has_storage(const at::Tensor& tensor);

/// True between release_storage() and allocate_storage(), also for a view of the tensor.
bool is_released(const at::Tensor& tensor);

/// Makes `tensor` a window of `buffer` (flat, same dtype) that begins at element `offset`; its own
/// bytes are given up. The tensor keeps its sizes and its identity: modules and autograd go on
/// holding it, and releasing or allocating the buffer's storage does the same to the window.
void place(const at::Tensor& tensor, const at::Tensor& buffer, std::int64_t offset);

/// The same bytes below autograd: writing into it neither records an operation nor raises the
/// version counter, so that tensors saved for backward stay valid.
at::Tensor raw(const at::Tensor& tensor);

namespace detail {

/// Puts `bytes` under `tensor`, in place of those that were there.
void set_bytes(const at::Tensor& tensor, at::DataPtr bytes);
/// Takes the bytes of `tensor`, as release_storage() does, without freeing them.
at::DataPtr take_bytes(const at::Tensor& tensor, const std::string& message);

}  // namespace detail

}  // namespace zero::memory
