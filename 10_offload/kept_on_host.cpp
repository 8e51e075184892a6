#include "kept_on_host.hpp"

#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>

namespace zero {

namespace {

using c10::impl::VirtualGuardImpl;

class KeptOnHost final : public nn::KeptInputs {
 public:
  explicit KeptOnHost(const std::vector<at::Tensor>& tensors);
  ~KeptOnHost() override;
  KeptOnHost(const KeptOnHost&) = delete;
  KeptOnHost& operator=(const KeptOnHost&) = delete;

  // Begins to fetch the tensors of the one before, unless they are there. Without `again` it frees
  // the host's memory, and a later call throws zero::Error.
  std::vector<at::Tensor> take(bool again) override;
  void follow(const std::shared_ptr<KeptOnHost>& before);

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

void KeptOnHost::follow(const std::shared_ptr<KeptOnHost>& before) {
  before_ = before;
  if (before) before->leave_device();
}

KeptOnHost::KeptOnHost(const std::vector<at::Tensor>& tensors)
    : device_(tensors.front().device()),
      compute_(VirtualGuardImpl(device_.type()).getStream(device_)),
      side_(VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_)),
      copied_(device_.type()) {
  for (const at::Tensor& tensor : tensors) {
    on_device_.push_back(tensor.detach());
    versions_.push_back(tensor._version());
    on_host_.push_back(
        at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true)));
  }
  copy(on_device_, on_host_);
}

KeptOnHost::~KeptOnHost() {
  try {
    if (!on_device_.empty()) copied_.block(compute_);
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

void KeptOnHost::copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  c10::Event ready(device_.type());
  ready.record(compute_);
  ready.block(side_);
  const c10::StreamGuard guard(side_);
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/true);
  copied_.record(side_);
}

void KeptOnHost::leave_device() {
  if (on_device_.empty()) return;
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    if (on_device_[i]._version() == versions_[i]) continue;
    throw Error(
        "an input of a checkpoint was changed in place while it was copied to the host: change a "
        "copy of it");
  }
  copied_.block(compute_);
  on_device_.clear();
}

void KeptOnHost::fetch() {
  if (!on_device_.empty() || on_host_.empty()) return;
  for (const at::Tensor& tensor : on_host_) {
    on_device_.push_back(at::empty_like(tensor, tensor.options().device(device_)));
  }
  versions_.clear();
  copy(on_host_, on_device_);
}

std::vector<at::Tensor> KeptOnHost::take(bool again) {
  fetch();
  std::vector<at::Tensor> tensors = on_device_;
  if (tensors.empty()) throw Error("the inputs of a checkpoint were used: run forward again");
  leave_device();
  if (!again) on_host_.clear();
  if (const auto before = before_.lock()) before->fetch();
  return tensors;
}

}  // namespace

std::shared_ptr<nn::KeptInputs> keep_on_host(const std::vector<at::Tensor>& inputs) {
  thread_local std::weak_ptr<KeptOnHost> last;
  auto kept = std::make_shared<KeptOnHost>(inputs);
  kept->follow(std::exchange(last, kept).lock());
  return kept;
}

}  // namespace zero
