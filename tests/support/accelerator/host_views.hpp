#pragma once

#include <torch/types.h>

#include <map>
#include <utility>
#include <vector>

#include "checker.hpp"

namespace zero::testing::emulated {

/// Tensors of the CPU that show the bytes of tensors of the device, for one operation. Tensors that
/// share a storage have views that share one.
class HostViews {
 public:
  /// The view of `tensor`, which the operation reads or writes. Noted as an access. Tensors of the
  /// CPU are their own view.
  at::Tensor of(const at::Tensor& tensor, bool writes);

  /// The tensor of the device for a result of the operation: the one whose view it is, a view of
  /// one, or a new one with the same bits.
  at::Tensor on_device(const at::Tensor& result);

  /// Operations may give an output another size: takes that over.
  void take_over_sizes();

  const std::vector<Access>& accesses() const { return accesses_; }

 private:
  c10::Storage storage_of(const at::Tensor& tensor);

  struct Pair {
    at::Tensor device;
    at::Tensor view;
    std::size_t access;  // its number
  };
  std::vector<Pair> pairs_;
  std::map<const c10::StorageImpl*, c10::Storage> storages_;  // by the device's
  std::vector<Access> accesses_;
};

/// The bytes that a tensor spans.
Access access_to(const at::Tensor& tensor, bool writes);

/// A tensor of the CPU with the bytes of `tensor`, for code of the host that uses them itself. The
/// host must have waited for the work that wrote them.
at::Tensor host_view(const at::Tensor& tensor, bool writes, const std::string& operation);

}  // namespace zero::testing::emulated
