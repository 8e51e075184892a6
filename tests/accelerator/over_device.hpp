#pragma once

#include <future>
#include <memory>
#include <utility>

#include <tests/support/accelerator/backend.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/store/folder_store.hpp>

/// Helpers of the tests of what runs on GPUs; nothing else includes this.
namespace zero::dist::testing {

using zero::testing::ProcessGroupOptions;

/// How ranks use the backend of devices with streams.
struct DeviceOptions {
  ProcessGroupOptions group = {};
  ReductionOrder order = ReductionOrder::kRankOrdered;
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  bool works_alone = false;
};

/// The backend of devices over the emulated process group, for the CPU with streams and events.
/// Made by all ranks of the communicator, with a store of their own in `folder`.
inline std::unique_ptr<DeviceBackend> device_backend(int rank, int size,
                                                     const std::filesystem::path& folder,
                                                     const DeviceOptions& options = {}) {
  zero::testing::enable_host_tasks();
  auto store = c10::make_intrusive<FolderStore>(folder);
  store->setTimeout(options.timeout);
  const Place place{.rank = rank,
                    .size = size,
                    .local_rank = rank,
                    .log = std::make_shared<CallLog>(store, rank, size),
                    .options = {.timeout = options.timeout, .order = options.order}};
  return std::make_unique<DeviceBackend>(
      place,
      zero::testing::emulated_transport(at::Device(at::kCPU), options.group, options.works_alone));
}

/// Holds the operations of this rank back until it is opened.
class Gate {
 public:
  ProcessGroupOptions options() {
    return {.before = [opened = opened_](c10d::OpType, std::uint64_t) { opened.wait(); }};
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

/// While it lives, `communicator` is over that backend.
class OverDevice {
 public:
  OverDevice(Communicator& communicator, const std::filesystem::path& folder,
             const DeviceOptions& options = {})
      : communicator_(communicator),
        other_(communicator.replace_backend(
            device_backend(communicator.rank(), communicator.size(), folder, options))) {}
  ~OverDevice() { communicator_.replace_backend(std::move(other_)); }
  OverDevice(const OverDevice&) = delete;
  OverDevice& operator=(const OverDevice&) = delete;

 private:
  Communicator& communicator_;
  std::unique_ptr<Backend> other_;
};

}  // namespace zero::dist::testing
