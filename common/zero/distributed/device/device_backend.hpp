#pragma once

// Private to common/zero/distributed, and to the library zero::cuda.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include <zero/distributed/pairwise_backend.hpp>
#include <zero/distributed/store/store_exchange.hpp>

namespace zero::dist {

using DeviceGroup = c10::intrusive_ptr<c10d::Backend>;

/// What carries the tensors of a DeviceBackend.
struct DeviceTransport {
  at::Device device;  ///< of this rank
  std::string name;   ///< of the transport, for people: "NCCL on GPU 0"
  /// Makes a group of all ranks. Its operations begin after earlier work of the current stream, and
  /// the wait() of their Works blocks the current stream and not the host.
  std::function<DeviceGroup(const StorePtr& store, int rank, int size,
                            std::chrono::milliseconds timeout)>
      make_group;
};

/// A collective on a device, from its start until it is seen to be complete. It holds its buffers
/// until it is waited on, including those that the caller has dropped, such as a widened copy:
/// otherwise the allocator could reuse their memory on the computing stream, which is not yet
/// ordered behind the collective. After wait() the waiting stream runs behind `done`, so freeing
/// and reusing them is safe. (record_stream() would keep the memory until the host next checks, and
/// peaks would depend on timing.)
struct Flight {
  Call call;
  std::vector<at::Tensor> buffers;  ///< what it reads and writes
  c10::Event done;
  std::vector<c10::intrusive_ptr<c10d::Work>>
      works;  ///< the group's operations, which notice errors
  bool waited_for = false;
};

/// Tensors of a device with streams over a group of c10d, such as NCCL's. See enable_nccl() of
/// nccl.hpp.
///
/// Gradients travel on one stream, everything else on another, beside the computing stream. The
/// host does not wait for them: a collective begins after earlier work of the calling thread's
/// stream, and wait() orders later work of that stream behind the collective.
class DeviceBackend final : public Backend {
 public:
  /// Called by all ranks. Makes the transport's device the current one of this thread; the group
  /// may connect in the first collective.
  DeviceBackend(const Place& place, DeviceTransport transport);
  /// Ends the group's connections. After an error it does not wait for peers.
  ~DeviceBackend() override;

  std::string transport() const override { return transport_.name; }
  bool takes(at::Device device) const override { return device == transport_.device; }

  WorkPtr broadcast(const Call& call, at::Tensor tensor) override;
  WorkPtr reduce(const Call& call, at::Tensor tensor) override;
  WorkPtr all_reduce(const Call& call, at::Tensor tensor) override;
  WorkPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr all_gather(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr all_to_all(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr message(const Call& call, at::Tensor tensor) override;
  void synchronize() override;

 private:
  using C10dWork = c10::intrusive_ptr<c10d::Work>;

  class FlightWork;
  using GroupOperation = std::function<C10dWork(c10d::Backend&)>;

  /// Runs `body`, which calls launch() and tensor operations on `buffers`, on the stream for this
  /// call.
  WorkPtr fly(const Call& call, std::vector<at::Tensor> buffers,
              const std::function<void(Flight&)>& body);
  /// Runs one of the group's operations within fly(); later work of the stream is ordered behind
  /// it.
  void launch(Flight& flight, const GroupOperation& operation);
  /// fly() with launch(), for a collective that is one operation; `after` runs on its result.
  WorkPtr start(const Call& call, std::vector<at::Tensor> buffers, const GroupOperation& operation,
                const std::function<void()>& after = {});
  WorkPtr reduce_in_order(const Call& call, const Pieces& pieces);
  c10::Stream current_stream() const;
  void forget_completed();
  void check(const Flight& flight);
  /// Ends the group's operations, so that no rank waits forever, and throws.
  [[noreturn]] void fail(const Flight& flight, const std::string& cause);

  int rank_;
  int size_;
  bool native_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<StoreExchange> store_;
  DeviceTransport transport_;
  DeviceGroup group_;
  c10::Stream gradients_;
  c10::Stream others_;
  std::deque<std::shared_ptr<Flight>> flights_;  // not yet seen to be complete, oldest first
  bool failed_ = false;
};

}  // namespace zero::dist
