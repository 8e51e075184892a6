#pragma once

// Private to common/zero/distributed: how ranks of one machine read each other's memory.

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/distributed/host/read_permission.hpp>
#include <zero/distributed/host/shared_arena.hpp>

namespace zero::dist {

class HostWork;

/// Copies out of a peer's tensors without the peer's help (process_vm_readv, Linux), between ranks
/// of one machine. They tell each other what may be read in a page of memory that all of them map.
///
/// A message over TCP is copied into the kernel by the sender and out of it by the receiver. Here
/// the sender only posts an address, and the receiver copies once, straight from tensor to tensor.
/// Nothing needs to be allocated in a special place. Where the system forbids to read a peer's
/// memory, the sender copies what it posts into memory that all can read (SharedArena), and the
/// receiver out of it: twice, but without the network's way through the kernel.
///
/// Every collective takes the next ticket (the same on all ranks, which call collectives in one
/// order). For each ticket a rank announces stages: its data may be read, its part of the sum is
/// ready, it will not read anybody's data any more.
class HostTransport {
 public:
  enum class Stage : std::uint8_t { kPosted, kReduced, kFinished };

  /// What a rank wants: no transport, or one through shared memory, or the quickest that there is.
  /// The least of what any wants is what all do.
  enum class TransportMode : std::uint8_t { kNone, kShared, kAny };

  /// Called by all ranks; blocks for two to six exchanges through the store. Null on every rank
  /// where any rank cannot reach any other (on another host or in another pid namespace), or does
  /// not want to. `reason` then says whose and which; and why, where ranks may not read each
  /// other's memory (a container without ptrace rights) and share some instead.
  ///
  /// Where reading is refused at first, ranks allow it to the processes that descend from their
  /// nearest common ancestor, and try again; the permission ends with the transport. No rank does
  /// that where one asks for kNone or kShared.
  static std::unique_ptr<HostTransport> open(StoreExchange& exchange, int rank, int size,
                                             std::chrono::milliseconds timeout, TransportMode mode,
                                             std::string& reason);
  ~HostTransport();
  HostTransport(const HostTransport&) = delete;
  HostTransport& operator=(const HostTransport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Whether peers read copies in shared memory, not this rank's own.
  bool shares() const { return arena_ != nullptr; }

  /// Takes the next ticket and lets peers read `bytes` of `data` (none where nobody will). `call`
  /// says what this rank calls, in at most 119 characters: where a peer says something else for
  /// this ticket, it is an error on both. Blocks only where a thousand collectives are in flight.
  std::uint64_t post(const void* data, std::int64_t bytes, const std::string& call);
  /// `bytes` of `data`, from `offset` of what was posted, are others now.
  void renew(std::uint64_t ticket, std::int64_t offset, const void* data, std::int64_t bytes);
  /// Nobody reads what was posted any more.
  void withdraw(std::uint64_t ticket);
  void announce(std::uint64_t ticket, Stage stage);
  bool reached(int peer, std::uint64_t ticket, Stage stage) const;
  /// Copies `bytes` from `offset` of what `peer` posted. zero::Error where the peer is gone, or
  /// posted for another collective.
  void read(int peer, std::uint64_t ticket, std::int64_t offset, void* to, std::int64_t bytes,
            const std::string& what);

  /// Blocks until `work` is complete, advancing all work of this rank meanwhile, so that peers that
  /// wait for other things go on. Throws zero::Error when the peer waited for is gone or the time
  /// limit passed without any progress; from then on at once for all that is not complete.
  void wait(HostWork& work);
  /// The steps of all work of this rank that can be taken now.
  void progress();

  /// Room for blocks that arrive from peers while they are added up: [size - 1, kBlockBytes] bytes.
  at::Tensor& scratch() { return scratch_; }
  /// Small enough for the second-level cache, so that a block is added while it is still there.
  static constexpr std::int64_t kBlockBytes = 256 << 10;

 private:
  friend class HostWork;
  struct Shared;
  struct Peer {
    int pid = 0;
    int handle = -1;  ///< pidfd: readable once the process ended, even before it is reaped
    std::uint64_t cookie_address = 0;  ///< where its memory holds `cookie`
    std::uint64_t cookie = 0;
    std::vector<int> lineage;
    std::unique_ptr<SharedArena> arena;  ///< where ranks share memory
  };

  HostTransport(int rank, int size, std::chrono::milliseconds timeout,
                std::shared_ptr<CallLog> log);
  std::string export_handles(TransportMode mode);
  std::string import_handles(const std::vector<std::string>& introductions);
  std::string try_reading() const;
  void permit_reading();
  bool share(StoreExchange& exchange, std::string& reason);
  bool read_raw(int peer, std::uint64_t address, void* to, std::int64_t bytes) const;
  void notify();
  void sleep(std::uint32_t bell);
  bool peer_lost(int peer) const;
  std::string disagreement(int peer) const;
  bool progress_all();
  [[noreturn]] void fail(const std::string& what, int peer, const std::string& why);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<CallLog> log_;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t cookie_ = 0;
  int memory_file_ = -1;
  Shared* shared_ = nullptr;
  std::vector<Peer> peers_;
  std::unique_ptr<ReadPermission> permission_;
  std::vector<HostWork*> active_;
  std::unique_ptr<SharedArena> arena_;  // where ranks share memory: what this one posted
  std::map<std::uint64_t, std::int64_t> in_arena_;  // its offset, by ticket
  at::Tensor scratch_;
  std::string lost_;  // why the group is dead, once it is
};

/// A collective over a transport. Its steps are taken by progress(), from any wait() of this rank.
class HostWork : public Work::Backend {
 public:
  HostWork(HostTransport& transport, std::string what);
  ~HostWork() override;

  void wait() override { transport_.wait(*this); }

  /// Does what can be done without blocking; whether that was anything.
  virtual bool progress() = 0;
  virtual bool complete() const = 0;
  /// A rank whose next step this work needs; only asked while it is not complete.
  virtual int waits_for() const = 0;
  const std::string& what() const { return what_; }

 protected:
  HostTransport& transport_;
  std::string what_;
};

}  // namespace zero::dist
