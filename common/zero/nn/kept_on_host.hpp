#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace zero::nn {

/// Tensors of a device that are in pinned memory of its host between forward and backward. A copy
/// runs on a side stream, behind the work that the current stream has when it begins. The next
/// keep() of the thread frees the tensors on the device, when the current stream has waited for
/// their copy; so those of the last keep() stay there. take() begins to fetch the tensors of the
/// keep() before, unless they are there.
///
/// So the device has the tensors of one keep() between forward and backward, and of two in them;
/// the host has all. The host never waits. All go out once, and all but the last come back.
class KeptOnHost {
 public:
  /// Begins to copy `tensors`, at least one, all of one device. If one was changed in place before
  /// it is freed there, the next keep(), or take(), throws zero::Error.
  static std::shared_ptr<KeptOnHost> keep(const std::vector<at::Tensor>& tensors);

  explicit KeptOnHost(const std::vector<at::Tensor>& tensors);
  ~KeptOnHost();
  KeptOnHost(const KeptOnHost&) = delete;
  KeptOnHost& operator=(const KeptOnHost&) = delete;

  /// The tensors, on the device, for the stream of keep(). Frees the host's memory, and a later
  /// call throws zero::Error. With `again` it keeps that memory, and a later call returns them too.
  std::vector<at::Tensor> take(bool again);

 private:
  void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);
  void fetch();
  void leave_device();

  const at::Device device_;
  const c10::Stream compute_, side_;
  std::vector<at::Tensor> on_device_, on_host_;
  std::vector<std::int64_t> versions_;  // of the tensors that were given
  c10::Event copied_;
  std::weak_ptr<KeptOnHost> before_;
};

}  // namespace zero::nn
