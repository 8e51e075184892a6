#pragma once

// Private to common/zero/distributed, and to the library zero::cuda.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include <zero/distributed/backend.hpp>
#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

/// `identities`: by rank, a text that is the same for one device alone, whatever its number is to
/// the rank. Throws zero::Error, the same on all ranks, if two ranks have one.
void verify_own_devices(const std::vector<std::string>& identities);

using DeviceGroup = c10::intrusive_ptr<c10d::Backend>;

/// What carries the tensors of a DeviceBackend.
struct DeviceTransport {
  at::Device device;  ///< of this rank
  std::string name;   ///< of the transport, for people: "NCCL on GPU 0"
  /// Makes a group of all ranks. Its operations begin after earlier work of the current stream, and
  /// the wait() of their Works blocks the current stream and not the host. Each group gets a store
  /// of its own.
  std::function<DeviceGroup(const StorePtr& store, int rank, int size,
                            std::chrono::milliseconds timeout)>
      make_group;
  bool works_alone = false;  ///< see Backend::works_alone()
};

/// An operation on a device, from its start until it is seen to be complete. It holds its buffers
/// until it is waited on, including those that the caller has dropped, such as a widened copy:
/// otherwise the allocator could reuse their memory on the computing stream, which is not yet
/// ordered behind the operation. After wait() the waiting stream runs behind `done`, so freeing
/// and reusing them is safe. (record_stream() would keep the memory until the host next checks, and
/// peaks would depend on timing; so would the group's Works, which keep what they write.)
struct Flight {
  Call call;
  std::vector<at::Tensor> buffers;  ///< what it reads and writes
  c10::Event done;
  bool waited_for = false;
};

/// Tensors of a device with streams over a group of c10d, such as NCCL's. See enable_nccl() of
/// nccl.hpp.
///
/// Beside the computing stream, gradients travel on one stream, other collectives on another, and
/// messages on one for each peer and direction. The host does not wait for them: an operation
/// begins after earlier work of the calling thread's stream, and wait() orders later work of that
/// stream behind it.
///
/// A group runs its collectives one after the other, on a stream of its own. So gradients have
/// another group than other collectives: a parameter that is gathered early does not wait for a
/// reduction. A group also runs the messages between two ranks one after the other, and a large
/// send waits for its receive. So messages to lower ranks have a group, too: once connected, two
/// ranks that send to each other do not wait for each other's receive.
class DeviceBackend final : public Backend {
 public:
  /// Called by all ranks. Makes the transport's device the current one of this thread; the group
  /// may connect in the first collective.
  DeviceBackend(const Place& place, DeviceTransport transport);
  /// Ends the group's connections. After an error it does not wait for peers.
  ~DeviceBackend() override;

  std::string transport() const override { return transport_.name; }
  bool takes(at::Device device) const override { return device == transport_.device; }
  bool works_alone() const override { return transport_.works_alone; }
  bool matches_calls() const override { return false; }

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override;
  void synchronize() override;

 private:
  /// What has a stream: a group, "down" (messages to lower ranks), "gradients" or "others", and the
  /// peer of its messages, or -1 for its collectives.
  using Lane = std::pair<std::string_view, int>;
  using GroupOperation = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  DeviceGroup new_group(const std::string& name) const;
  /// Runs `body`, which calls launch() and tensor operations on `buffers`, on the stream for this
  /// call.
  WorkPtr fly(const Call& call, std::vector<at::Tensor> buffers, const std::function<void()>& body);
  /// Runs one of the group's operations within fly(); later work of the stream is ordered behind
  /// it.
  void launch(const Call& call, const GroupOperation& operation);
  WorkPtr reduce_in_order(const Call& call, const at::Tensor& output, const at::Tensor& input);
  Lane lane_of(const Call& call) const;
  c10d::Backend& group_of(const Call& call);
  const c10::Stream& stream_of(const Call& call);
  c10::Stream current_stream() const;
  void forget_completed();
  void wait_for(const Flight& flight);
  /// Why operations have ended that look complete; empty if they are.
  std::string error_of_groups() const;
  /// Ends the operations of the groups, so that no rank waits forever.
  void abort(const std::string& cause) noexcept;
  /// The same, and throws.
  [[noreturn]] void fail(const Flight& flight, const std::string& cause);

  Place place_;
  DeviceTransport transport_;
  std::map<std::string_view, DeviceGroup> groups_;  // by name; the first call makes each
  std::map<Lane, c10::Stream> streams_;             // the first call makes each
  std::deque<std::shared_ptr<Flight>> flights_;     // not yet seen to be complete, oldest first
  std::string aborted_;                             // why; empty: they are not
};

}  // namespace zero::dist
