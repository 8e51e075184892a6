#pragma once

#include <c10/core/Stream.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "place.hpp"
#include "vector_clock.hpp"

namespace zero::testing::emulated {

/// Bytes of the device that an operation uses.
struct Access {
  const void* begin;
  std::size_t bytes;
  bool writes;
};

/// What a program did wrong.
enum class Fault {
  kUnordered,   ///< two streams use the same bytes, one of them writes, and neither waits
  kFreedInUse,  ///< a block goes back to its stream while another stream may still use it
  kHostAccess,  ///< the host uses bytes of a stream that it has not waited for
  kReadEarly,   ///< the host uses the result of a non-blocking copy before it has waited
};

struct Finding {
  Fault fault;
  std::string text;  ///< names both places
};

/// Something recorded on a stream. It is complete when the host knows of it, or was asked for it
/// often enough.
struct Event {
  VectorClock known;
  int polls = 0;  ///< how often query() still says that it is not complete
};

/// What a program asked of the device.
struct Counts {
  std::int64_t launches = 0;
  std::int64_t host_waits = 0;
  std::int64_t events = 0;
};

/// Finds accesses to memory that no stream, event or host wait orders, although all kernels run at
/// once and in program order: values cannot show it, clocks can. Each stream, and the host with all
/// its threads, has a vector clock. A launch joins what the host knows; recording an event is a
/// snapshot, waiting for it a join. Each block of memory has the last accesses to each of its
/// parts. Safe on any thread.
class Checker {
 public:
  static Checker& get();

  /// A kernel on this stream. Reports what is not ordered before it.
  void launch(c10::StreamId stream, const std::vector<Access>& accesses,
              const std::string& operation);
  /// The host itself uses bytes of the device.
  void host_access(const std::vector<Access>& accesses, const std::string& operation);

  Event record(c10::StreamId stream);
  /// Later work of the stream runs behind the event.
  void block(c10::StreamId stream, const Event& event);
  /// Whether the event is complete, as the host sees it.
  bool query(Event& event);
  bool query(c10::StreamId stream);
  /// The host waits.
  void synchronize(const Event& event);
  void synchronize(c10::StreamId stream);
  void synchronize();

  /// The allocator hands a block out on this stream. That counts as a write: its memory may have
  /// been another tensor's, whose last work on this stream is not complete.
  void allocated(const void* begin, std::size_t bytes, c10::StreamId stream);
  /// The block goes back to the stream that it came from, but not before all work that `recorded`
  /// streams have by now. Returns the event of that work.
  Event freed(const void* begin, const std::set<c10::StreamId>& recorded);
  /// As query(), but the host learns nothing: for the allocator.
  bool complete(Event& event);

  /// `staged` arrives in `destination`, on the host, when the host has waited for the stream's work
  /// up to now. Until then an operation that uses `destination` is reported.
  void deliver(c10::StreamId stream, const at::Tensor& destination, const at::Tensor& staged);
  /// Whether a copy has not arrived.
  bool awaits_copies() const;
  /// `tensor`, of the host, as work of this stream sees it: if a copy that was made before on this
  /// stream arrives in it, its values.
  at::Tensor in_stream_order(c10::StreamId stream, const at::Tensor& tensor);
  /// The host uses this tensor of its own.
  void host_tensor_used(const at::Tensor& tensor, const char* operation);

  /// What was found since the last call.
  std::vector<Finding> take_findings();
  /// If true, an access that is reported throws c10::Error as well; a free, in the next access.
  void throw_at_once(bool yes);
  Counts counts() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Record {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool writes;
    std::size_t actor;
    std::uint64_t time;
    std::shared_ptr<const Place> place;
  };
  struct Block {
    std::uintptr_t end;
    std::size_t owner;  // the actor whose stream it was allocated on
    std::vector<Record> records;
  };
  struct Delivery {
    VectorClock after;
    at::Tensor destination;
    at::Tensor staged;
    Place place;
    bool reported = false;
  };

  VectorClock& clock_of(std::size_t actor);
  VectorClock& of_stream(c10::StreamId stream);
  void use(std::size_t actor, const std::vector<Access>& accesses, const std::string& operation);
  void use_block(Block& block, const Record& now);
  void report(Fault fault, const std::string& text);
  void end_of_check(Lock lock);
  void host_learns(Lock lock, const VectorClock& clock);

  mutable std::mutex mutex_;
  std::vector<VectorClock> clocks_;  // of the host, then of the streams
  std::map<std::uintptr_t, Block> blocks_;
  std::vector<Delivery> deliveries_;
  std::map<c10::StreamId, int> polls_;  // of streams that are queried
  std::vector<Finding> findings_;
  std::string thrown_;  // what the current check is to throw
  bool throws_ = false;
  Counts counts_;
  std::mt19937 random_{1};
};

}  // namespace zero::testing::emulated
