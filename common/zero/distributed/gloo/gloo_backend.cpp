#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/gloo/link.hpp>
#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/pairwise_backend.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/memory/storage_pool.hpp>

namespace zero::dist {
namespace {

/// What the messages of a communicator have in common.
struct GlooLinks {
  GroupPtr group;
  std::chrono::milliseconds timeout;
  std::shared_ptr<CallLog> log;
  std::shared_ptr<Link> link;  ///< null: as fast as the network
};

// Gloo pairs messages by a tag of 31 bits, and those of one tag in the order of sending. Of the
// fingerprint it holds the number of the call, so that collectives in flight differ in any case,
// and 19 bits of the hash.
constexpr int kResultTag = 1 << 29;   ///< sums on their way back
constexpr int kMessageTag = 1 << 30;  ///< send() and recv()
int tag_of(const Call& call) {
  return static_cast<int>(call.fingerprint & static_cast<std::uint64_t>(kResultTag - 1));
}

/// Messages of one collective over Gloo that are waited on together. Errors name the peer that did
/// not answer.
class MessageSet final : public Work::Pending {
 public:
  using Message = c10::intrusive_ptr<c10d::Work>;

  /// `links` must outlive it.
  MessageSet(const GlooLinks& links, const Call& call) : links_(links), call_(call) {}

  /// Operation::kSend to `peer`, or kRecv from it.
  void add(Operation operation, at::Tensor tensor, int peer, int tag);

  /// Blocks until all are done, in the order in which they were started.
  void wait() override;

 private:
  struct Started {
    Message message;
    int peer;
    at::Tensor arrival;  // over a Link: when the tensor is there
  };
  void start(Operation operation, const at::Tensor& tensor, int peer, int tag,
             const at::Tensor& arrival = {});
  void wait_for(const Message& message, int peer) const;
  /// `why` is a disagreement that was found, or empty.
  [[noreturn]] void fail(int peer, const std::string& cause, std::string why) const;

  const GlooLinks& links_;
  Call call_;
  std::vector<Started> messages_;
};

void MessageSet::add(Operation operation, at::Tensor tensor, int peer, int tag) {
  const auto rank = [this](int r) { return links_.log->world_rank(r); };
  const int me = rank(links_.group->getRank());
  if (links_.link == nullptr || !links_.link->is_between(me, rank(peer))) {
    return start(operation, tensor, peer, tag);
  }
  // The sender knows when the tensor will be there, and says so in a message before it.
  const memory::Charge charge(memory::Category::kCommunication);
  const at::Tensor arrival = at::empty({1}, at::kLong);
  if (operation == Operation::kSend) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    arrival.fill_(links_.link->send(me, rank(peer), bytes).time_since_epoch().count());
  }
  start(operation, arrival, peer, tag);
  start(operation, tensor, peer, tag, arrival);
}

void MessageSet::start(Operation operation, const at::Tensor& tensor, int peer, int tag,
                       const at::Tensor& arrival) {
  std::vector<at::Tensor> tensors{tensor};
  try {
    messages_.push_back({operation == Operation::kSend ? links_.group->send(tensors, peer, tag)
                                                       : links_.group->recv(tensors, peer, tag),
                         peer, arrival});
  } catch (const std::exception& error) {
    fail(peer, error.what(), "");
  }
}

void MessageSet::wait() {
  for (const auto& [message, peer, arrival] : messages_) {
    wait_for(message, peer);
    if (!arrival.defined()) continue;
    std::this_thread::sleep_until(Link::Time(Link::Time::duration(arrival.item<std::int64_t>())));
  }
}

void MessageSet::wait_for(const Message& message, int peer) const {
  const CallLog::Waiting waiting(*links_.log, [&message] { message->abort(); });
  std::string cause = "given up";
  try {
    if (message->wait(links_.timeout)) return;
  } catch (const std::exception& error) {
    cause = error.what();
  }
  fail(peer, cause, waiting.found());
}

void MessageSet::fail(int peer, const std::string& cause, std::string why) const {
  // The peer may have left because it saw that its calls and this rank's differ.
  if (why.empty()) why = links_.log->disagreement();
  if (!why.empty()) throw Error(fmt::format("{}: {}", call_.text(), why));
  why = fmt::format("{} ({})", peer_is_gone(links_.log->world_rank(peer)), first_line(cause));
  if (cause.find("Timed out") != std::string::npos) {
    why = peer_is_late(links_.log->world_rank(peer), links_.timeout);
  } else if (cause.find("Application timeout") != std::string::npos) {
    // Gloo closes all connections when one wait times out.
    why = "ended because another collective of this rank has failed";
  }
  throw Error(fmt::format("{}: {}", call_.text(), why));
}

// Pieces are cut into windows. This keeps the scratch small and lets one window travel while
// another is added up: at most kWindows are in flight.
constexpr std::int64_t kWindows = 2;

// Scratch for what arrives from peers: at most kScratchBytes for each reduction.
class PairwiseReduction final : public Work::Pending {
 public:
  PairwiseReduction(const GlooLinks& links, std::shared_ptr<memory::StoragePool> scratch,
                    const Call& call, int rank, int size, Pieces pieces)
      : links_(links),
        scratch_(std::move(scratch)),
        call_(call),
        rank_(rank),
        size_(size),
        pieces_(std::move(pieces)),
        window_(std::max<std::int64_t>(1, kScratchBytes / kWindows / (size_ - 1) /
                                              static_cast<std::int64_t>(output().element_size()))),
        outgoing_(links, call) {
    // Receives first: a message that finds its receive posted is copied once, not twice.
    for (std::int64_t w = 0; w < kWindows; ++w) post_receives(w);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const at::Tensor piece = pieces_.of(peer);
      for (std::int64_t w = 0; w * window_ < piece.numel(); ++w) {
        outgoing_.add(Operation::kSend, cut(piece, w), peer, tag_of(call_));
        // The owner sends its result into the tensor that was sent to it. That is safe: it answers
        // only after it has received the whole contribution.
        if (pieces_.gather)
          outgoing_.add(Operation::kRecv, cut(piece, w), peer, tag_of(call_) | kResultTag);
      }
    }
  }

  void wait() override {
    for (std::int64_t w = 0; w * window_ < output().numel(); ++w) {
      add_up(w);
      post_receives(w + kWindows);
    }
    outgoing_.wait();
  }

 private:
  struct Arrival {
    at::Tensor block;  // [size - 1, window]
    MessageSet messages;
  };

  const at::Tensor& output() const { return pieces_.output; }

  at::Tensor cut(const at::Tensor& piece, std::int64_t w) const {
    const std::int64_t begin = w * window_;
    return piece.narrow(0, begin, std::min(window_, piece.numel() - begin));
  }

  void post_receives(std::int64_t w) {
    if (w * window_ >= output().numel()) return;
    const std::int64_t n = cut(output(), w).numel();
    Arrival& arrival = arrivals_.emplace_back(
        Arrival{memory::without_storage({size_ - 1, n}, output().scalar_type()),
                MessageSet(links_, call_)});
    scratch_->allocate(arrival.block, memory::Category::kCommunication);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      arrival.messages.add(Operation::kRecv, arrival.block.select(0, row_of(peer)), peer,
                           tag_of(call_));
    }
  }

  int row_of(int peer) const { return peer < rank_ ? peer : peer - 1; }

  void add_up(std::int64_t w) {
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    arrival.messages.wait();
    std::vector<at::Tensor> contributions;
    for (int rank = 0; rank < size_; ++rank) {
      contributions.push_back(rank == rank_ ? cut(pieces_.of(rank), w)
                                            : arrival.block.select(0, row_of(rank)));
    }
    const at::Tensor sum = cut(output(), w);
    dist::add_up(call_, sum, contributions);
    scratch_->release(arrival.block);
    if (!pieces_.gather) return;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) outgoing_.add(Operation::kSend, sum, peer, tag_of(call_) | kResultTag);
    }
  }

  const GlooLinks& links_;
  std::shared_ptr<memory::StoragePool> scratch_;
  Call call_;
  int rank_;
  int size_;
  Pieces pieces_;
  std::int64_t window_;  // elements
  MessageSet outgoing_;
  std::deque<Arrival> arrivals_;
};

/// CPU tensors over Gloo, by direct messages between pairs of ranks.
class GlooBackend final : public PairwiseBackend {
 public:
  explicit GlooBackend(const Place& place)
      : PairwiseBackend(place.rank, place.size),
        links_{make_gloo_group(place.log->store(), place.rank, place.size,
                               place.log->world_rank(place.rank), place.options.loopback,
                               place.options.timeout),
               place.options.timeout, place.log, place.link} {}

  std::string transport() const override { return fmt::format("TCP ({})", reason_); }
  /// Why it carries collectives.
  void set_reason(std::string reason) { reason_ = std::move(reason); }
  bool finds_not_finite() const override { return true; }

 protected:
  WorkPtr exchange_parts(const Call& call, at::Tensor /*source*/, std::vector<Part> outgoing,
                         std::vector<Part> incoming) override {
    auto work = std::make_unique<MessageSet>(links_, call);
    for (Part& part : incoming)
      work->add(Operation::kRecv, std::move(part.tensor), part.peer, tag_of(call));
    for (Part& part : outgoing)
      work->add(Operation::kSend, std::move(part.tensor), part.peer, tag_of(call));
    return work;
  }

  WorkPtr reduce_pieces(const Call& call, Pieces pieces) override {
    auto scratch = scratch_.lock();
    if (scratch == nullptr) scratch_ = scratch = std::make_shared<memory::StoragePool>();
    return std::make_unique<PairwiseReduction>(links_, std::move(scratch), call, rank(), size(),
                                               std::move(pieces));
  }

  WorkPtr message(const Call& call, at::Tensor tensor) override {
    auto work = std::make_unique<MessageSet>(links_, call);
    work->add(call.operation, std::move(tensor), call.root, kMessageTag);
    return work;
  }

 private:
  GlooLinks links_;
  // Scratch in which contributions of peers arrive. Reductions that overlap in time reuse each
  // other's blocks and so avoid page faults; the last one frees all blocks.
  std::weak_ptr<memory::StoragePool> scratch_;
  std::string reason_;
};

std::string transport_of(const Place& place) {
  const std::string transport = base::variable("ZERO_TRANSPORT").value_or(place.options.transport);
  if (transport == "auto" || transport == "host" || transport == "tcp") return transport;
  throw Error(fmt::format("transport '{}' is unknown: auto, host or tcp", transport));
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const Place& place, bool tcp) {
  const std::string mode = tcp ? "tcp" : transport_of(place);
  auto own = std::make_unique<GlooBackend>(place);
  GlooBackend& gloo = *own;
  std::unique_ptr<Backend> backend = std::move(own);
  const std::string reason = put_host_before(backend, place, /*wanted=*/mode != "tcp");
  if (mode == "host" && !reason.empty()) {
    throw Error(fmt::format(
        "the ranks cannot read each other's memory: {}; choose transport auto or tcp", reason));
  }
  gloo.set_reason(reason);
  return backend;
}

}  // namespace zero::dist
