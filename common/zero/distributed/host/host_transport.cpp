#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <sstream>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/distributed/host/host_transport.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

using Clock = std::chrono::steady_clock;

// Collectives that may be in flight at once before post() waits for the oldest.
constexpr std::uint64_t kSlots = 1024;
// Checks of the shared page before a rank sleeps: a peer on another core is usually nearly done.
constexpr int kLooks = 64;
constexpr long kSleepNanoseconds = 20'000'000;  // then checks whether the peer is alive

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "atomics are shared by processes");

}  // namespace

struct HostTransport::Shared {
  struct alignas(64) Slot {
    std::atomic<std::int64_t> offset;                  // in the arena of the rank
    std::atomic<std::uint64_t> fingerprint;            // of the call that has the ticket
    std::array<std::atomic<std::uint64_t>, 3> stages;  // the last ticket that reached each
  };
  struct alignas(64) Rank {
    std::atomic<std::uint32_t> bell;      // counts announcements of peers
    std::atomic<std::uint32_t> sleeping;  // whether peers must wake this rank
    std::atomic<std::uint32_t> left;      // its communicator is gone
    std::array<Slot, kSlots> slots;
  };

  Rank* ranks() { return reinterpret_cast<Rank*>(this); }
  Slot& slot(int rank, std::uint64_t ticket) { return ranks()[rank].slots[ticket % kSlots]; }
  static std::int64_t bytes(int size) { return size * static_cast<std::int64_t>(sizeof(Rank)); }
};

HostTransport::HostTransport(const Place& place)
    : rank_(place.rank),
      size_(place.size),
      timeout_(place.options.timeout),
      log_(place.log.get()),
      peers_(static_cast<std::size_t>(size_)),
      host_(fmt::format("{}/{}", where_pids_are_valid(),
                        place.hosts.empty() ? 0 : place.hosts[static_cast<std::size_t>(rank_)])) {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) others_.push_back(r);
  }
}

HostTransport::~HostTransport() {
  if (shared_ != nullptr) {
    shared_->ranks()[rank_].left.store(1);
    notify();
  }
  for (const Peer& peer : peers_) {
    if (peer.handle >= 0) ::close(peer.handle);
  }
}

std::unique_ptr<HostTransport> HostTransport::open(const Place& place, Backend& texts, bool wanted,
                                                   std::string& reason) {
  std::unique_ptr<HostTransport> transport(new HostTransport(place));
  const auto said = exchange(&texts, place, transport->export_handles(wanted));
  const auto verdicts = exchange(&texts, place, transport->import_handles(said));
  for (int r = 0; r < place.size; ++r) {
    const std::string& verdict = verdicts[static_cast<std::size_t>(r)];
    if (verdict.empty()) continue;
    reason = fmt::format("rank {}: {}", transport->name_of(r), verdict);
    // No rank waits on this transport, so peers need not be told that this rank leaves it.
    return nullptr;
  }
  return transport;
}

std::string HostTransport::export_handles(bool wanted) {
  if (!wanted) return "";
  try {
    if (rank_ == 0) page_ = std::make_unique<memory::SharedArena>(Shared::bytes(size_));
    arena_ = &memory::share_large_blocks();
  } catch (const Error&) {
    // All ranks find out when they map it.
  }
  return fmt::format("{} {} {} {}", host_, ::getpid(), page_ ? page_->file() : -1,
                     arena_ ? arena_->file() : -1);
}

std::string HostTransport::import_handles(const std::vector<std::string>& introductions) {
  for (int r = 0; r < size_; ++r) {
    std::istringstream words(introductions[static_cast<std::size_t>(r)]);
    std::string place;
    int pid = 0, page = -1, arena = -1;
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (!(words >> place >> pid >> page >> arena)) {
      return fmt::format("rank {} does not want it", name_of(r));
    }
    if (place != host_) return fmt::format("rank {} is on another host", name_of(r));
    try {
      if (!page_) {
        page_ = std::make_unique<memory::SharedArena>(pid, page, Shared::bytes(size_),
                                                      /*writes=*/true);
      }
      if (r != rank_) peer.arena = std::make_unique<memory::SharedArena>(pid, arena);
    } catch (const Error& error) {
      return fmt::format("the memory of rank {} cannot be read: {}", name_of(r), error.what());
    }
    shared_ = reinterpret_cast<Shared*>(page_->at(0));
    if (r == rank_) continue;
    peer.handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (peer.handle < 0) return fmt::format("rank {} cannot be watched (pidfd_open)", name_of(r));
  }
  return "";
}

at::Tensor HostTransport::shared(const Call& call, const at::Tensor& tensor) const {
  if (arena_->contains(tensor.const_data_ptr())) return tensor;
  const auto offset = arena_->allocate(static_cast<std::int64_t>(tensor.nbytes()));
  if (!offset) {
    throw Error(fmt::format("{}: there is no room for {} bytes in the memory that ranks share",
                            call.text(), tensor.nbytes()));
  }
  const auto free = [arena = arena_](void* data) { arena->free(arena->offset_of(data)); };
  const at::Tensor copy = at::from_blob(arena_->at(*offset), tensor.sizes(), free,
                                        tensor.options().requires_grad(false));
  copy_around_cache(copy, tensor);
  return copy;
}

std::uint64_t HostTransport::post(const Call& call, const at::Tensor& shared) {
  const std::uint64_t ticket = next_ticket_++;
  if (ticket > kSlots) {
    // A slot may be reused once no rank needs its old contents.
    const auto busy = [this, old = ticket - kSlots] {
      const std::uint64_t fingerprint = shared_->slot(rank_, old).fingerprint.load();
      for (int r = 0; r < size_; ++r) {
        if (!reached(r, old, fingerprint, Stage::kFinished)) return r;
      }
      return -1;
    };
    wait(busy, [] { return "too many collectives in flight"; });
  }
  Shared::Slot& slot = shared_->slot(rank_, ticket);
  if (shared.defined()) slot.offset.store(arena_->offset_of(shared.const_data_ptr()));
  slot.fingerprint.store(call.fingerprint);
  announce(ticket, Stage::kPosted);
  return ticket;
}

void HostTransport::announce(std::uint64_t ticket, Stage stage) {
  shared_->slot(rank_, ticket).stages[static_cast<std::size_t>(stage)].store(ticket);
  notify();
}

bool HostTransport::reached(int peer, std::uint64_t ticket, std::uint64_t fingerprint,
                            Stage stage) const {
  const Shared::Slot& slot = shared_->slot(peer, ticket);
  const auto at = [&](Stage s) { return slot.stages[static_cast<std::size_t>(s)].load(); };
  if (at(stage) < ticket) return false;
  // A peer uses a slot again when all ranks have finished the collective that had it.
  return at(Stage::kPosted) > ticket || slot.fingerprint.load() == fingerprint;
}

at::Tensor HostTransport::data_of(int peer, std::uint64_t ticket, std::int64_t offset,
                                  const at::Tensor& shape) const {
  const memory::SharedArena& arena = *peers_[static_cast<std::size_t>(peer)].arena;
  return at::from_blob(arena.at(shared_->slot(peer, ticket).offset.load() + offset), shape.sizes(),
                       shape.options().requires_grad(false));
}

void HostTransport::done_reading(int peer, const at::Tensor& read, const Call& call) {
  // So that memory is not counted in several ranks.
  constexpr std::int64_t kWorthIt = 2 << 20;
  const memory::SharedArena& arena = *peers_[static_cast<std::size_t>(peer)].arena;
  const auto bytes = static_cast<std::int64_t>(read.nbytes());
  if (bytes >= kWorthIt) arena.forget(arena.offset_of(read.const_data_ptr()), bytes);
  if (peer_lost(peer)) fail(call.text(), peer, "");
}

void HostTransport::wait(const std::function<int()>& waits_for,
                         const std::function<std::string()>& what) {
  auto last_progress = Clock::now();
  auto next_look = last_progress + CallLog::kPatience;
  for (int look = 0; waits_for() >= 0; ++look) {
    // Otherwise each wait would last a whole time limit.
    if (!lost_.empty()) throw Error(fmt::format("{}: given up after {}", what(), lost_));
    const std::uint32_t bell = shared_->ranks()[rank_].bell.load();
    const int peer = waits_for();
    const bool peer_gone = peer_lost(peer);  // checked first: what it left behind still counts
    if (progress_all()) {
      last_progress = Clock::now();
      look = 0;
      continue;
    }
    if (waits_for() < 0) return;
    if (peer_gone && waits_for() == peer) fail(what(), peer, "");
    if (Clock::now() > next_look) {
      if (const std::string why = log_->disagreement(); !why.empty()) fail(what(), peer, why);
      next_look = Clock::now() + CallLog::kPatience;
    }
    if (Clock::now() - last_progress > timeout_) {
      fail(what(), peer, peer_is_late(name_of(peer), timeout_));
    }
    look < kLooks ? static_cast<void>(::sched_yield()) : sleep(bell);
  }
}

void HostTransport::progress() {
  while (progress_all()) {
  }
}

bool HostTransport::progress_all() {
  bool moved = false;
  for (HostWork* work : active_) moved |= work->progress();
  // What has its results takes no more steps.
  std::erase_if(active_, [](const HostWork* work) { return work->needs() < 0; });
  return moved;
}

void HostTransport::notify() {
  for (const int r : others_) {
    Shared::Rank& peer = shared_->ranks()[r];
    peer.bell.fetch_add(1);
    if (peer.sleeping.load() != 0) {
      ::syscall(SYS_futex, &peer.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
  }
}

void HostTransport::sleep(std::uint32_t bell) {
  Shared::Rank& mine = shared_->ranks()[rank_];
  const timespec limit{0, kSleepNanoseconds};
  mine.sleeping.store(1);
  // Returns at once if the bell has been rung since it was read.
  ::syscall(SYS_futex, &mine.bell, FUTEX_WAIT, bell, &limit, nullptr, 0);
  mine.sleeping.store(0);
}

bool HostTransport::peer_lost(int peer) const {
  if (peer < 0 || peer == rank_) return false;
  if (shared_->ranks()[peer].left.load() != 0) return true;
  pollfd ended{peers_[static_cast<std::size_t>(peer)].handle, POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

void HostTransport::fail(const std::string& what, int peer, const std::string& why) {
  // The group is dead: tell peers, so that they need not wait to find out.
  shared_->ranks()[rank_].left.store(1);
  notify();
  std::string cause = why;
  // The peer may have left because it saw that its calls and this rank's differ.
  if (cause.empty()) cause = log_->disagreement();
  if (cause.empty()) cause = peer_is_gone(name_of(peer));
  const std::string said = fmt::format("{}: {}", what, cause);
  if (lost_.empty()) lost_ = said;  // the first is the cause of all others
  throw Error(said);
}

}  // namespace zero::dist
