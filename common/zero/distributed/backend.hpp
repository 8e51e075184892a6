#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/connect_in_folder.hpp>
#include <zero/distributed/reduction.hpp>
#include <zero/distributed/work.hpp>

/// What carries tensors between ranks. CONTRIBUTING.md says how to add a backend.
namespace zero::dist {

class CallLog;
class Link;

/// One way of carrying tensors between the ranks of a group: what a Communicator calls. It has
/// checked the arguments, and counts and times; a backend moves bytes and adds them up.
///
/// The function of Communicator with the same name says what an operation means, and which pieces
/// of tensors it concerns. A backend is not called for one rank, unless works_alone(). Two
/// collectives of different ranks with different Call::fingerprint must not take each other's data,
/// unless it says by matches_calls() that it cannot know.
class Backend {
 public:
  using WorkPtr = std::unique_ptr<Work::Pending>;

  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Starts `call.operation` and returns at once. It is complete when its Pending has been waited
  /// on; null means that it is complete already. Tensors are contiguous, and those of collectives
  /// have more than 0 elements. All but reduce_scatter, all_gather and all_to_all are in place:
  /// `output` is `input`. A barrier is the all_gather of a byte. Reductions divide the sum by
  /// call.divisor.
  ///
  /// start() or the wait() of its Pending throws zero::Error that names the call (Call::text()) if
  /// it cannot be done, a peer is lost, or the time limit (ConnectOptions::timeout) is over.
  virtual WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) = 0;

  /// See Communicator::progress() and synchronize().
  virtual void progress() {}
  virtual void synchronize() {}

  /// How bytes travel, as text for people.
  virtual std::string transport() const = 0;
  /// Whether it carries tensors of this device.
  virtual bool takes(at::Device device) const { return device.is_cpu(); }
  /// Whether one rank alone calls it too, so that tests on one device see its work.
  virtual bool works_alone() const { return false; }
  /// Whether collectives with different fingerprints wait for each other.
  virtual bool matches_calls() const { return true; }
  /// Whether it says through Call::not_finite which sums are not finite.
  virtual bool finds_not_finite() const { return false; }
};

/// A Pending whose wait() calls `finish`.
template <typename Finish>
Backend::WorkPtr when_waited_for(Finish finish) {
  struct WhenWaitedFor final : Work::Pending {
    explicit WhenWaitedFor(Finish f) : finish(std::move(f)) {}
    void wait() override { finish(); }
    Finish finish;
  };
  return std::make_unique<WhenWaitedFor>(std::move(finish));
}

/// A rank among others that have met.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;                 ///< among the ranks of this machine
  std::shared_ptr<CallLog> log = {};  ///< of the group, with the store through which it has met;
                                      ///< null: the other ranks are made up
  ConnectOptions options = {};
  std::vector<int> hosts = {};      ///< by rank; empty: one host
  std::shared_ptr<Link> link = {};  ///< null: as fast as the network
  Backend* cpu = nullptr;           ///< while another one is made: that of CPU tensors
};

/// What every rank says, by rank, sent by the backend of CPU tensors (null for one rank) as two
/// collectives like `call`. Called by all ranks of `place`; blocks.
std::vector<std::string> exchange(Backend* backend, const Place& place, const std::string& text,
                                  Call call = {Operation::kAllGather, Purpose::kSetup,
                                               /*sequence=*/0, /*bytes=*/0, /*step=*/-1,
                                               /*public_call=*/{}});

/// Makes a backend. Called by all ranks of a group; may block and throw zero::Error, and may change
/// the order of reductions in `place`.
using MakeBackend = std::function<std::unique_ptr<Backend>(Place& place)>;

/// Makes `name` a value of ConnectOptions::backend, for tensors on devices of type `device`. Unless
/// that is the CPU, CPU tensors travel by TCP, and a rank alone has this backend, too. "gloo" is
/// always there. Not thread-safe: call it at start-up.
void add_backend(const std::string& name, at::DeviceType device, MakeBackend make);

/// Throws zero::Error that names the known ones if no backend has this name.
void verify_backend(const std::string& name);

/// What a communicator consists of.
struct Connection {
  Place place;
  std::unique_ptr<Backend> cpu = {};     ///< null for one rank
  std::unique_ptr<Backend> device = {};  ///< for all other tensors; null: `cpu` has them too
  /// The connection of a group, of which this rank is rank `rank`.
  std::function<Connection(int rank, const std::vector<int>& ranks, const std::string& label)>
      split = {};
};

/// For Place::link of the world; as fast as the network until open_link() (gloo/link.hpp).
std::shared_ptr<Link> make_link();
void open_link(Link& link, Communicator& world);
/// Makes the backends of `joined` for the ranks of its place: the one of its options and, beside
/// it, one for CPU tensors. Called by all of them; blocks.
void make_backends(Connection& joined);

}  // namespace zero::dist
