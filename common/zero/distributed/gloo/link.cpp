#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/distributed/gloo/link.hpp>

namespace zero::dist {
namespace {

// When a way is free, in nanoseconds of the clock that all processes of the machine share.
using FreeFrom = std::atomic<std::int64_t>;
static_assert(FreeFrom::is_always_lock_free, "it is shared by processes");

// Takes a way for `duration` from `now` on, or after what it carries already. Returns the end.
std::int64_t take(FreeFrom& way, std::int64_t now, std::int64_t duration) {
  std::int64_t free = way.load();
  while (!way.compare_exchange_weak(free, std::max(free, now) + duration)) {
  }
  return std::max(free, now) + duration;
}

}  // namespace

std::shared_ptr<Link> make_link() { return std::make_shared<Link>(); }

void open_link(Link& link, Communicator& world) { link.open(world); }

void Link::open(Communicator& world) {
  for (int r = 0; r < world.size(); ++r) hosts_.push_back(world.host_of(r));
  if (std::ranges::count(hosts_, hosts_.front()) == world.size()) return;
  rate_ = link_rate();
  const auto size = static_cast<std::int64_t>(2 * hosts_.size() * sizeof(FreeFrom));
  std::unique_ptr<memory::SharedArena> page;
  if (world.rank() == 0) page = std::make_unique<memory::SharedArena>(size);
  const auto said = world.exchange(fmt::format("{} {} {} {}", rate_, where_pids_are_valid(),
                                               ::getpid(), page ? page->file() : -1));
  int pid = 0, file = 0;
  std::string limit, machine;
  std::istringstream(said.front()) >> limit >> machine >> pid >> file;
  for (std::size_t r = 1; r < said.size(); ++r) {
    std::string other_limit, other_machine;
    std::istringstream(said[r]) >> other_limit >> other_machine;
    if (other_limit != limit) {
      throw Error(fmt::format(
          "ZERO_LINK is {} bytes a second on rank 0 and {} on rank {} (0: not set): it must be the "
          "same on all ranks",
          limit, other_limit, r));
    }
    if (rate_ > 0 && other_machine != machine) {
      throw Error(fmt::format(
          "ZERO_LINK is for ranks of one machine that stands for several hosts, and rank {} is on "
          "another machine than rank 0, with a link of its own: unset ZERO_LINK",
          r));
    }
  }
  if (rate_ == 0) return;
  if (!page) page = std::make_unique<memory::SharedArena>(pid, file, size, /*writes=*/true);
  page_ = std::move(page);
}

Link::Time Link::send(int from, int to, std::int64_t bytes) {
  const auto way = [this](int rank, int which) -> FreeFrom& {
    return reinterpret_cast<FreeFrom*>(page_->at(0))[2 * host(rank) + which];
  };
  const std::int64_t now = Time::clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  const auto duration =
      static_cast<std::int64_t>(std::ceil(1e9 * static_cast<double>(bytes) / rate_));
  const std::int64_t end =
      std::max(take(way(from, 0), now, duration), take(way(to, 1), now, duration));
  return Time(std::chrono::nanoseconds(end));
}

}  // namespace zero::dist
