#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace zero::testing::emulated {

/// Makes the device's operations known to LibTorch: factories, views and copies, and all others by
/// register_fallback().
void register_operations();

/// Those that GPUs have and the CPU has not.
void register_fused_operations();

/// Operations of the device that are not registered otherwise run the CPU's kernel over the same
/// memory, so that results have the CPU's bits. Which tensors an operation reads and writes, as the
/// checker sees it, is what its schema says. An operation that returns a number, or tensors whose
/// size depends on values, makes the host wait, as on a GPU. Also reports operations of the CPU
/// that use the result of a non-blocking copy too early.
void register_fallback();

/// Gives a storage of the device this many bytes. The first ones stay.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace zero::testing::emulated
