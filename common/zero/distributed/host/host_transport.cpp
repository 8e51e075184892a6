#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/host/host_transport.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

using Clock = std::chrono::steady_clock;

// Collectives that may be in flight at once before post() waits for the oldest.
constexpr std::uint64_t kSlots = 1024;
// Checks of the shared page before a rank sleeps: a peer on another core is usually nearly done.
constexpr int kLooks = 64;
constexpr long kSleepNanoseconds = 20'000'000;  // then checks whether the peer is alive

// First character of a verdict: reading is not used but memory can be shared, because a rank asked
// for it (kCanShare) or because the system forbids reading a peer's memory (kForbidden).
constexpr char kCanShare = '~';
constexpr char kForbidden = '!';
constexpr const char* kShare = "share";

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "atomics are shared by processes");

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Ranks with the same text here see the same process ids.
std::string where_pids_are_valid() {
  std::error_code ignored;
  return first_line_of("/proc/sys/kernel/random/boot_id") + "/" +
         std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace

struct HostTransport::Shared {
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> address;
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

HostTransport::HostTransport(StoreExchange& exchange)
    : rank_(exchange.rank()),
      size_(exchange.size()),
      timeout_(exchange.timeout()),
      log_(&exchange.call_log()),
      peers_(static_cast<std::size_t>(size_)) {
  const memory::Charge charge(memory::Category::kCommunication);
  scratch_ = at::empty({size_ - 1, kBlockBytes}, at::kByte);
  for (int r = 0; r < size_; ++r) names_.push_back(log_->world_rank(r));
}

void HostTransport::stop() {
  stopped_ = true;
  shared_->ranks()[rank_].left.store(1);
  notify();
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

std::unique_ptr<HostTransport> HostTransport::open(StoreExchange& exchange, TransportMode mode,
                                                   std::string& reason) {
  std::unique_ptr<HostTransport> transport(new HostTransport(exchange));
  const std::vector<std::string> introductions = exchange.exchange(transport->export_handles(mode));
  std::vector<std::string> verdicts = exchange.exchange(transport->import_handles(introductions));
  const bool forbidden = std::any_of(verdicts.begin(), verdicts.end(),
                                     [](const auto& v) { return v.starts_with(kForbidden); });
  const bool may_be_allowed = std::all_of(verdicts.begin(), verdicts.end(), [](const auto& v) {
    return v.empty() || v.front() == kForbidden;
  });
  if (forbidden && may_be_allowed) {
    transport->permit_reading();
    exchange.exchange("permitted");  // no rank tries before all have permitted
    verdicts = exchange.exchange(transport->try_reading());
  }
  bool reads = true;
  for (int r = 0; r < exchange.size(); ++r) {
    const std::string& verdict = verdicts[static_cast<std::size_t>(r)];
    if (verdict.empty()) continue;
    const bool can_share = verdict.front() == kCanShare || verdict.front() == kForbidden;
    reason = fmt::format("rank {}: {}", transport->name_of(r), verdict.substr(can_share ? 1 : 0));
    // No rank waits on this transport, so peers need not be told that this rank leaves it.
    if (!can_share) return nullptr;
    reads = false;
  }
  if (!reads) {
    try {
      transport->share(exchange);
    } catch (const Error& error) {
      reason += fmt::format("; {}", error.what());
      return nullptr;
    }
  }
  // The ranks may read only by another transport's permission, which may end first.
  if (reads && ReadPermission::any()) transport->permit_reading();
  return transport;
}

void HostTransport::share(StoreExchange& exchange) {
  permission_.reset();  // it did not help
  const auto on_all = [&](const std::function<std::string()>& step) {
    return on_all_ranks([&](const std::string& mine) { return exchange.exchange(mine); },
                        "memory is not shared", step, [this](int rank) { return name_of(rank); });
  };
  const std::vector<std::string> files = on_all([&] {
    arena_ = std::make_unique<SharedArena>(bytes_of_this_machine());
    return std::to_string(arena_->file());
  });
  on_all([&] {
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      if (r == static_cast<std::size_t>(rank_)) continue;
      peers_[r].arena = std::make_unique<SharedArena>(peers_[r].pid, std::stoi(files[r]),
                                                      bytes_of_this_machine());
    }
    return std::string();
  });
}

std::string HostTransport::export_handles(TransportMode mode) {
  if (mode == TransportMode::kNone) return "not wanted";
  cookie_ = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) ^
            (static_cast<std::uint64_t>(::getpid()) << 32);
  try {
    if (rank_ == 0) page_ = std::make_unique<SharedArena>(Shared::bytes(size_));
  } catch (const Error&) {
    // All ranks find out when they map it.
  }
  return fmt::format("{} {} {} {} {} {} {}", where_pids_are_valid(), ::getpid(),
                     page_ ? page_->file() : -1, reinterpret_cast<std::uintptr_t>(&cookie_),
                     cookie_, mode == TransportMode::kShared ? kShare : "read",
                     fmt::join(lineage(), " "));
}

std::string HostTransport::import_handles(const std::vector<std::string>& introductions) {
  std::string sharing;  // why memory is shared, if it is
  for (int r = 0; r < size_; ++r) {
    std::istringstream words(introductions[static_cast<std::size_t>(r)]);
    std::string place, mode;
    int file = -1;
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (!(words >> place >> peer.pid >> file >> peer.cookie_address >> peer.cookie >> mode)) {
      return fmt::format("rank {} does not want it", name_of(r));
    }
    peer.lineage.assign(std::istream_iterator<int>(words), {});
    if (place != where_pids_are_valid())
      return fmt::format("rank {} is on another host", name_of(r));
    try {
      if (!page_) page_ = std::make_unique<SharedArena>(peer.pid, file, Shared::bytes(size_));
    } catch (const Error&) {
      return "the memory of rank 0's transport cannot be mapped";
    }
    shared_ = reinterpret_cast<Shared*>(page_->at(0));
    if (mode == kShare) sharing = fmt::format("rank {} asks for shared memory", name_of(r));
    if (r == rank_) continue;
    peer.handle = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
    if (peer.handle < 0) return fmt::format("rank {} cannot be watched (pidfd_open)", name_of(r));
  }
  return sharing.empty() ? try_reading() : kCanShare + sharing;
}

std::string HostTransport::try_reading() const {
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    std::uint64_t seen = 0;
    if (r == rank_) continue;
    if (read_raw(r, peer.cookie_address, &seen, sizeof seen) && seen == peer.cookie) continue;
    return fmt::format("{}the system forbids reading the memory of rank {} (process_vm_readv)",
                       kForbidden, name_of(r));
  }
  return "";
}

void HostTransport::permit_reading() {
  std::vector<std::vector<int>> lineages;
  for (const Peer& peer : peers_) lineages.push_back(peer.lineage);
  const int ancestor = nearest_common_ancestor(lineages);
  if (ancestor > 0 && !permission_) permission_ = std::make_unique<ReadPermission>(ancestor);
}

bool HostTransport::read_raw(int peer, std::uint64_t address, void* to, std::int64_t bytes) const {
  auto* local = static_cast<std::byte*>(to);
  while (bytes > 0) {
    iovec into{local, static_cast<std::size_t>(bytes)};
    iovec from{reinterpret_cast<void*>(address), static_cast<std::size_t>(bytes)};
    const ssize_t n =
        ::process_vm_readv(peers_[static_cast<std::size_t>(peer)].pid, &into, 1, &from, 1, 0);
    if (n <= 0) return false;
    local += n;
    address += static_cast<std::uint64_t>(n);
    bytes -= n;
  }
  return true;
}

std::uint64_t HostTransport::post(const Call& call, const at::Tensor& tensor, bool reads) {
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
  auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  if (shares()) {
    in_arena_[ticket] = arena_->put(tensor.const_data_ptr(),
                                    reads ? static_cast<std::int64_t>(tensor.nbytes()) : 0);
    address = static_cast<std::uintptr_t>(in_arena_[ticket]);
  }
  slot.address.store(address);
  slot.fingerprint.store(call.fingerprint);
  announce(ticket, Stage::kPosted);
  return ticket;
}

void HostTransport::renew(std::uint64_t ticket, std::int64_t offset, const void* data,
                          std::int64_t bytes) {
  if (!shares()) return;  // peers read the tensor itself
  std::memcpy(arena_->at(in_arena_.at(ticket) + offset), data, static_cast<std::size_t>(bytes));
}

void HostTransport::withdraw(std::uint64_t ticket) {
  const auto found = in_arena_.find(ticket);
  if (found == in_arena_.end()) return;
  arena_->free(found->second);
  in_arena_.erase(found);
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

void HostTransport::read(int peer, std::uint64_t ticket, std::int64_t offset, void* to,
                         std::int64_t bytes, const HostWork& work) {
  const Shared::Slot& slot = shared_->slot(peer, ticket);
  const std::uint64_t from = slot.address.load() + static_cast<std::uint64_t>(offset);
  bool done = true;
  if (shares()) {
    const SharedArena& arena = *peers_[static_cast<std::size_t>(peer)].arena;
    std::memcpy(to, arena.at(static_cast<std::int64_t>(from)), static_cast<std::size_t>(bytes));
  } else {
    done = read_raw(peer, from, to, bytes);
  }
  // A peer that left without waiting for its readers may have freed the data during the read.
  if (!done || peer_lost(peer)) fail(work.what(), peer, "");
}

void HostTransport::wait(const std::function<int()>& waits_for,
                         const std::function<std::string()>& what) {
  auto last_progress = Clock::now();
  auto next_look = last_progress + CallLog::kPatience;
  for (int look = 0; waits_for() >= 0; ++look) {
    // Otherwise each wait would last a whole time limit.
    if (!lost_.empty()) throw Error(fmt::format("{}: given up after {}", what(), lost_));
    if (stopped_) fail(what(), rank_, "given up");
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
  return moved;
}

void HostTransport::notify() {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
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

// Posts before the transport knows this work: posting may wait, and waiting advances all work.
HostWork::HostWork(HostTransport& transport, const Call& call, at::Tensor tensor, bool reads)
    : transport_(transport),
      call_(call),
      posted_(std::move(tensor)),
      ticket_(transport.post(call, posted_, reads)) {
  transport_.active_.push_back(this);
}

HostWork::~HostWork() {
  std::erase(transport_.active_, this);
  transport_.withdraw(ticket_);
}

}  // namespace zero::dist
