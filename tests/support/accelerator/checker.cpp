#include "checker.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace zero::testing::emulated {
namespace {

constexpr std::size_t kHost = 0;
constexpr int kMostPolls = 3;

std::size_t actor_of(c10::StreamId stream) { return static_cast<std::size_t>(stream) + 1; }

std::string name_of(std::size_t actor) {
  return actor == kHost ? "the host" : fmt::format("stream {}", actor - 1);
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Checker& Checker::get() {
  static auto* const checker = new Checker;  // outlives tensors that are freed at exit
  return *checker;
}

VectorClock& Checker::clock_of(std::size_t actor) {
  if (actor >= clocks_.size()) clocks_.resize(actor + 1);
  return clocks_[actor];
}

VectorClock& Checker::of_stream(c10::StreamId stream) {
  const std::size_t actor = actor_of(stream);
  clock_of(actor).join(VectorClock(clock_of(kHost)));
  return clock_of(actor);
}

void Checker::report(Fault fault, const std::string& text) {
  constexpr std::size_t kMost = 100;
  if (findings_.size() < kMost) findings_.push_back({fault, text});
  if (throws_ && thrown_.empty()) thrown_ = text;
}

void Checker::end_of_check(Lock lock) {
  const std::string text = std::exchange(thrown_, "");
  lock.unlock();
  TORCH_CHECK(text.empty(), text);
}

void Checker::use_block(Block& block, const Record& now) {
  const VectorClock& known = clocks_[now.actor];
  const auto inside = [&](const Record& r) { return r.begin >= now.begin && r.end <= now.end; };
  for (const Record& before : block.records) {
    const bool apart = before.end <= now.begin || now.end <= before.begin;
    if (apart || !(before.writes || now.writes) || known[before.actor] >= before.time) continue;
    report(now.actor == kHost ? Fault::kHostAccess : Fault::kUnordered,
           fmt::format("{} by {} is not ordered behind {} by {}", now.writes ? "a write" : "a read",
                       now.place->text(), before.writes ? "the write" : "the read",
                       before.place->text()));
  }
  std::erase_if(block.records, [&](const Record& before) {
    return inside(before) && (now.writes || (!before.writes && before.actor == now.actor));
  });
  block.records.push_back(now);
}

void Checker::use(std::size_t actor, const std::vector<Access>& accesses,
                  const std::string& operation) {
  const std::uint64_t time = clock_of(actor).tick(actor);
  const auto place = std::make_shared<const Place>(operation, name_of(actor));
  for (const Access& access : accesses) {
    const std::uintptr_t begin = address(access.begin);
    auto block = blocks_.upper_bound(begin);
    if (access.bytes == 0 || block == blocks_.begin()) continue;
    --block;
    if (begin >= block->second.end) continue;
    use_block(block->second, {begin, begin + access.bytes, access.writes, actor, time, place});
  }
}

void Checker::launch(c10::StreamId stream, const std::vector<Access>& accesses,
                     const std::string& operation) {
  Lock lock(mutex_);
  ++counts_.launches;
  polls_.erase(stream);
  of_stream(stream);
  use(actor_of(stream), accesses, operation);
  end_of_check(std::move(lock));
}

void Checker::host_access(const std::vector<Access>& accesses, const std::string& operation) {
  Lock lock(mutex_);
  use(kHost, accesses, operation);
  end_of_check(std::move(lock));
}

Event Checker::record(c10::StreamId stream) {
  const Lock lock(mutex_);
  ++counts_.events;
  return {of_stream(stream), std::uniform_int_distribution<int>(1, kMostPolls)(random_)};
}

void Checker::block(c10::StreamId stream, const Event& event) {
  const Lock lock(mutex_);
  of_stream(stream).join(event.known);
}

bool Checker::complete(Event& event) {
  const Lock lock(mutex_);
  return clock_of(kHost).covers(event.known) || event.polls-- <= 0;
}

bool Checker::query(Event& event) {
  if (!complete(event)) return false;
  host_learns(Lock(mutex_), event.known);
  return true;
}

bool Checker::query(c10::StreamId stream) {
  Event event;
  {
    const Lock lock(mutex_);
    event = {of_stream(stream), polls_.try_emplace(stream, kMostPolls).first->second--};
  }
  return query(event);
}

void Checker::host_learns(Lock lock, const VectorClock& clock) {
  VectorClock& host = clock_of(kHost);
  host.join(clock);
  const auto arrived =
      std::stable_partition(deliveries_.begin(), deliveries_.end(),
                            [&](const Delivery& delivery) { return !host.covers(delivery.after); });
  const std::vector<Delivery> ready(std::make_move_iterator(arrived),
                                    std::make_move_iterator(deliveries_.end()));
  deliveries_.erase(arrived, deliveries_.end());
  lock.unlock();  // what follows runs operations, which come here
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const Delivery& delivery : ready) delivery.destination.copy_(delivery.staged);
}

void Checker::synchronize(const Event& event) {
  Lock lock(mutex_);
  ++counts_.host_waits;
  host_learns(std::move(lock), event.known);
}

void Checker::synchronize(c10::StreamId stream) {
  Lock lock(mutex_);
  ++counts_.host_waits;
  const VectorClock known = of_stream(stream);
  host_learns(std::move(lock), known);
}

void Checker::synchronize() {
  Lock lock(mutex_);
  ++counts_.host_waits;
  VectorClock all;
  for (const VectorClock& clock : clocks_) all.join(clock);
  host_learns(std::move(lock), all);
}

void Checker::allocated(const void* begin, std::size_t bytes, c10::StreamId stream) {
  const Lock lock(mutex_);
  blocks_[address(begin)] = {address(begin) + bytes, actor_of(stream), {}};
  of_stream(stream);
  use(actor_of(stream), {{begin, bytes, /*writes=*/true}}, "the allocation");
}

Event Checker::freed(const void* begin, const std::set<c10::StreamId>& recorded) {
  const Lock lock(mutex_);
  const auto found = blocks_.find(address(begin));
  TORCH_INTERNAL_ASSERT(found != blocks_.end());
  const std::size_t owner = found->second.owner;
  const VectorClock& known = of_stream(static_cast<c10::StreamId>(owner) - 1);
  for (const Record& last : found->second.records) {
    if (last.actor == owner || known[last.actor] >= last.time) continue;
    if (last.actor != kHost && recorded.count(static_cast<c10::StreamId>(last.actor) - 1) != 0) {
      continue;
    }
    report(Fault::kFreedInUse,
           fmt::format("a free by {} gives memory back to {}, which is not ordered behind the {} "
                       "by {}, and record_stream() was not called",
                       Place("the free", "the host").text(), name_of(owner),
                       last.writes ? "write" : "read", last.place->text()));
  }
  blocks_.erase(found);
  Event event;
  for (const c10::StreamId stream : recorded) event.known.join(VectorClock(of_stream(stream)));
  event.polls = std::uniform_int_distribution<int>(1, kMostPolls)(random_);
  return event;
}

void Checker::deliver(c10::StreamId stream, const at::Tensor& destination,
                      const at::Tensor& staged) {
  const Lock lock(mutex_);
  deliveries_.push_back(
      {of_stream(stream), destination, staged, Place("copy_", name_of(actor_of(stream)))});
}

bool Checker::awaits_copies() const {
  const Lock lock(mutex_);
  return !deliveries_.empty();
}

at::Tensor Checker::in_stream_order(c10::StreamId stream, const at::Tensor& tensor) {
  Lock lock(mutex_);
  if (deliveries_.empty() || !tensor.has_storage()) return tensor;
  for (Delivery& delivery : deliveries_) {
    const at::Tensor& there = delivery.destination;
    if (!tensor.is_alias_of(there)) continue;
    if (of_stream(stream).covers(delivery.after)) {
      const std::int64_t offset = tensor.storage_offset() - there.storage_offset();
      const at::Tensor staged = delivery.staged;
      lock.unlock();  // what follows is an operation, which comes here
      return staged.as_strided(tensor.sizes(), tensor.strides(), offset);
    }
    delivery.reported = true;
    report(Fault::kUnordered,
           fmt::format("{} is not ordered behind the non-blocking {}",
                       Place("a read of the host's memory", name_of(actor_of(stream))).text(),
                       delivery.place.text()));
  }
  end_of_check(std::move(lock));
  return tensor;
}

void Checker::host_tensor_used(const at::Tensor& tensor, const char* operation) {
  Lock lock(mutex_);
  if (deliveries_.empty() || !tensor.has_storage()) return;
  for (Delivery& delivery : deliveries_) {
    // Operations call others.
    if (delivery.reported || !tensor.is_alias_of(delivery.destination)) continue;
    delivery.reported = true;
    report(Fault::kReadEarly,
           fmt::format("{} uses the result of the non-blocking {} before the host waited",
                       Place(operation, "the host").text(), delivery.place.text()));
  }
  end_of_check(std::move(lock));
}

std::vector<Finding> Checker::take_findings() {
  const Lock lock(mutex_);
  return std::exchange(findings_, {});
}

void Checker::throw_at_once(bool yes) {
  const Lock lock(mutex_);
  throws_ = yes;
}

Counts Checker::counts() const {
  const Lock lock(mutex_);
  return counts_;
}

}  // namespace zero::testing::emulated
