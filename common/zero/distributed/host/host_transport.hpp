#pragma once

// Private to common/zero/distributed: how ranks of one machine read each other's memory.

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/backend.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/memory/shared_arena.hpp>

namespace zero::dist {

/// A collective over a HostTransport, which every wait of this rank advances.
class HostWork : public Work::Pending {
 public:
  /// Does what can be done without blocking; returns whether that was anything.
  virtual bool progress() = 0;
  /// A rank whose next step this rank needs for its results; -1 if it has them.
  virtual int needs() const = 0;
};

/// Reads tensors of other ranks of one machine where they lie, without the peer's help: the large
/// blocks of every rank are in memory that all ranks map (memory::SharedArena). A page of such
/// memory says what may be read.
///
/// A message over TCP is copied into the kernel by the sender and out of it by the receiver. Here
/// the sender only posts an offset, and the receiver reads the tensor itself, to copy it or to add
/// it up. A tensor that lies elsewhere (a small one, or one that is older than the transport) is
/// copied into the arena when it is posted.
///
/// Every collective takes the next ticket, which is the same on all ranks because they call
/// collectives in one order. For each ticket a rank announces stages: its data may be read
/// (kPosted), its part of the sum is ready (kReduced), it will not read from peers any more
/// (kFinished). A rank whose call for the ticket has another fingerprint has reached none of them.
class HostTransport {
 public:
  enum class Stage : std::uint8_t { kPosted, kReduced, kFinished };

  /// Called by all ranks; blocks for two exchanges over `texts`. Returns null on every rank if
  /// any does not want it or cannot reach another (on another of Place::hosts, in another pid
  /// namespace, or the system refuses to share memory). `reason` then names the rank and the cause.
  /// The log of `place` must outlive the transport.
  static std::unique_ptr<HostTransport> open(const Place& place, Backend& texts, bool wanted,
                                             std::string& reason);
  ~HostTransport();
  HostTransport(const HostTransport&) = delete;
  HostTransport& operator=(const HostTransport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The ranks but this one.
  const std::vector<int>& others() const { return others_; }
  /// `tensor`, if it lies in the arena, or a copy of it there. Throws zero::Error that names the
  /// call if there is no room.
  at::Tensor shared(const Call& call, const at::Tensor& tensor) const;
  /// Takes the next ticket and lets peers read `shared`, if it is defined. Blocks only when a
  /// thousand collectives are in flight.
  std::uint64_t post(const Call& call, const at::Tensor& shared);
  void announce(std::uint64_t ticket, Stage stage);
  bool reached(int peer, std::uint64_t ticket, std::uint64_t fingerprint, Stage stage) const;
  /// The data that `peer` posted, from byte `offset` on, like `shape`. End with done_reading().
  at::Tensor data_of(int peer, std::uint64_t ticket, std::int64_t offset,
                     const at::Tensor& shape) const;
  /// Throws zero::Error if the peer is lost: it may have freed the data, `read`, in the meantime.
  void done_reading(int peer, const at::Tensor& read, const Call& call);

  /// Blocks until `waits_for`, which names the rank whose next step is needed, returns -1. Advances
  /// all work of this rank meanwhile, so that peers that wait for it continue. Throws zero::Error
  /// that begins with `what` if the peer waited for is lost or the time limit passes without
  /// progress; after that every incomplete wait throws at once.
  void wait(const std::function<int()>& waits_for, const std::function<std::string()>& what);
  /// Advances all work of this rank as far as possible without blocking.
  void progress();
  /// From now on advances `work`, until it has its results or is removed.
  void add(HostWork* work) { active_.push_back(work); }
  void remove(HostWork* work) { std::erase(active_, work); }

 private:
  struct Shared;
  struct Peer {
    int handle = -1;  ///< pidfd: readable once the process has ended, even before it is reaped
    std::unique_ptr<memory::SharedArena> arena;
  };

  explicit HostTransport(const Place& place);
  std::string export_handles(bool wanted);
  std::string import_handles(const std::vector<std::string>& introductions);
  void notify();
  void sleep(std::uint32_t bell);
  bool peer_lost(int peer) const;
  int name_of(int rank) const { return log_->world_rank(rank); }
  bool progress_all();
  [[noreturn]] void fail(const std::string& what, int peer, const std::string& why);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  CallLog* log_;
  std::uint64_t next_ticket_ = 1;
  std::unique_ptr<memory::SharedArena> page_;  // of rank 0
  Shared* shared_ = nullptr;                   // at the start of page_
  std::vector<Peer> peers_;
  std::vector<HostWork*> active_;
  memory::SharedArena* arena_ = nullptr;  // of this process
  std::string lost_;                      // why the group is dead; empty while it lives
  std::string host_;                      // the same on ranks of this host
  std::vector<int> others_;
};

}  // namespace zero::dist
