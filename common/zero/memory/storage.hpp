#pragma once

#include <torch/types.h>

/// Taking the bytes away from a tensor and giving them back, in place.
///
/// Autograd saves parameters for the backward pass by reference. If the bytes come back in the same
/// storage object, what it saved stays valid, however often they went away in between (FSDP does
/// the same). The tensor keeps its sizes and strides all the time.
namespace zero::memory {

/// A contiguous tensor of these sizes with a storage of 0 bytes: a parameter that knows its shape
/// and holds nothing yet.
at::Tensor without_storage(at::IntArrayRef sizes, at::ScalarType dtype,
                           at::Device device = at::kCPU);

/// Frees the bytes under `tensor`. The tensor must span its whole storage, and nobody may read it
/// until allocate_storage().
void release_storage(const at::Tensor& tensor);

/// Gives `tensor` its bytes again, uninitialised, charged to the category of the current scope.
/// Does nothing when they are there.
void allocate_storage(const at::Tensor& tensor);

/// False between release_storage() and allocate_storage(). True for a tensor of 0 elements.
bool has_storage(const at::Tensor& tensor);

/// Makes `tensor` a window of `buffer` (flat, same dtype) that begins at element `offset`; its own
/// bytes are given up. The tensor keeps its sizes and its identity: modules and autograd go on
/// holding it, and releasing or allocating the buffer's storage does the same to the window.
void place(const at::Tensor& tensor, const at::Tensor& buffer, std::int64_t offset);

/// The same bytes below autograd: writing into it neither records an operation nor raises the
/// version counter, so that tensors saved for backward stay valid.
at::Tensor raw(const at::Tensor& tensor);

}  // namespace zero::memory
