#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include <zero/distributed/hierarchical/host_chain.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

// Of a sum on its way. Shorter ones cost more messages, longer ones let the last host begin later.
constexpr std::int64_t kWindowBytes = 128 << 10;
// Windows that arrive, and as many that leave, at once.
constexpr std::size_t kAhead = 8;

}  // namespace

std::vector<HostChain::Window> HostChain::windows_of(int place) const {
  const std::int64_t most = kWindowBytes / static_cast<std::int64_t>(c10::elementSize(sums_));
  std::vector<Window> windows;
  for (const auto& [begin, length, owner] : links_.routes.lane(call_, input_.numel(), place)) {
    for (std::int64_t done = 0; done < length; done += most) {
      windows.push_back({begin + done, std::min(most, length - done), owner});
    }
  }
  return windows;
}

// The rank of the same place so many hosts further on.
int HostChain::neighbour(int hosts) const { return links_.routes.rank_at(host_ + hosts, place_); }

// Where this rank's result lies.
at::Tensor HostChain::result(const Window& window) const {
  if (call_.operation != Operation::kReduceScatter) return part(window);
  return output_.narrow(0, window.begin - links_.rank * output_.numel(), window.length);
}

void HostChain::run() {
  {
    HostReads reads(links_.inside.host_transport(), call_, input_);
    receive_results();
    for (std::size_t w = 0; w < kAhead; ++w) receive_sum(w);
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      add(windows_[w], reads);
      receive_sum(w + kAhead);
    }
    if (call_.operation == Operation::kAllReduce) return_sums();
    reads.finish();
    for (Flight& flight : leaving_) flight.message.wait();
  }
  if (call_.operation == Operation::kAllReduce) share_sums();
}

void HostChain::finish() {
  results_.wait();
  if (call_.not_finite == nullptr) return;
  const std::vector<bool> found = not_finite_.take();
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank]) call_.not_finite->note(static_cast<int>(rank));
  }
}

// Into the tensors themselves: a sum arrives only after what this rank adds to it has been read.
void HostChain::receive_results() {
  const HostRoutes& routes = links_.routes;
  if (call_.operation == Operation::kAllReduce) {
    for (const Window& window : windows_) {
      if (last()) return;
      returning_.emplace_back(links_.messages, call_)
          .recv(part(window), neighbour(1), tag_of(call_) | kResultTag);
    }
    return;
  }
  for (int place = 0; place < routes.per_host(); ++place) {
    const int from = routes.rank_at(routes.hosts() - 1, place);
    for (const Window& window : windows_of(place)) {
      if (window.owner != links_.rank || from == links_.rank) continue;
      results_.recv(result(window), from, tag_of(call_) | kResultTag);
    }
  }
}

void HostChain::receive_sum(std::size_t w) {
  if (first() || w >= windows_.size()) return;
  Flight& flight =
      arriving_.emplace_back(Flight{at::empty({windows_[w].length}, input_.options().dtype(sums_)),
                                    MessageSet(links_.messages, call_)});
  flight.message.recv(flight.block, neighbour(-1), tag_of(call_));
}

// Adds the values of this host's ranks, one after the other, and passes the sum on.
void HostChain::add(const Window& window, HostReads& reads) {
  std::vector<at::Tensor> read, values;
  std::vector<int> ranks;  // whose they are, for NotFinite
  for (int place = 0; place < links_.routes.per_host(); ++place) {
    read.push_back(part(window));
    if (place != place_) read.back() = reads.of(place, window.begin, read.back());
    values.push_back(read.back().to(sums_));
    ranks.push_back(call_.adds_sums ? -1 : links_.routes.rank_at(host_, place));
  }
  if (!first()) {
    arriving_.front().message.wait();
    values.insert(values.begin(), arriving_.front().block);
    ranks.insert(ranks.begin(), -1);
    arriving_.pop_front();
  }
  const bool stays = last() && (window.owner == links_.rank || window.owner < 0);
  const at::ScalarType dtype = last() ? input_.scalar_type() : sums_;
  const at::Tensor to = stays ? result(window) : make_room(window, dtype);
  const at::Tensor sum = dtype == sums_ ? to : at::empty_like(values.front());
  SumCheck check = sum_in_rank_order(sum, values, last() ? call_.divisor : 1);
  if (dtype != sums_) {
    at::Tensor(to).copy_(sum);
    check.finite = check.finite && all_finite(to);
  }
  for (int place = 0; place < links_.routes.per_host(); ++place) {
    if (place != place_) reads.done(place, read[static_cast<std::size_t>(place)]);
  }
  if (!check.finite) not_finite_.find(sum, values, ranks, check.overwritten_finite);
  if (!last()) {
    send(to, neighbour(1), tag_of(call_));
  } else if (window.owner < 0) {
    results_.send(to, neighbour(-1), tag_of(call_) | kResultTag);
  } else if (!stays) {
    send(to, window.owner, tag_of(call_) | kResultTag);
  }
}

// A block for a sum that leaves, when an earlier one has left.
at::Tensor HostChain::make_room(const Window& window, at::ScalarType dtype) {
  if (leaving_.size() == kAhead) {
    leaving_.front().message.wait();
    leaving_.pop_front();
  }
  return at::empty({window.length}, input_.options().dtype(dtype));
}

void HostChain::send(const at::Tensor& block, int to, int tag) {
  leaving_.push_back({block, MessageSet(links_.messages, call_)});
  leaving_.back().message.send(block, to, tag);
}

// The way back of an all-reduce: from the last host to the first.
void HostChain::return_sums() {
  for (std::size_t w = 0; w < returning_.size(); ++w) {
    returning_[w].wait();
    if (!first()) {
      results_.send(part(windows_[w]), neighbour(-1), tag_of(call_) | kResultTag);
    }
  }
}

// Each rank of the host has the sums of its lane.
void HostChain::share_sums() {
  std::vector<HostBackend::Part> outgoing, incoming;
  for (int place = 0; place < links_.routes.per_host(); ++place) {
    if (place == place_) continue;
    outgoing.push_back({place, input_});
    for (const auto& [begin, length, owner] : links_.routes.lane(call_, input_.numel(), place)) {
      if (length == 0) continue;
      incoming.push_back({place, input_.narrow(0, begin, length),
                          begin * static_cast<std::int64_t>(input_.element_size())});
    }
  }
  const auto work = links_.inside.exchange_parts(call_, input_, outgoing, incoming);
  if (work != nullptr) work->wait();
}

}  // namespace zero::dist
