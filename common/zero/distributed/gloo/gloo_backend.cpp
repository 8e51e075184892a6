#include <algorithm>
#include <deque>
#include <utility>

#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/store/store_exchange.hpp>
#include <zero/memory/storage.hpp>

namespace zero::dist {
namespace {

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
        outgoing_.send(cut(piece, w), peer, tag_of(call_));
        // The owner sends its result into the tensor that was sent to it. That is safe: it answers
        // only after it has received the whole contribution.
        if (pieces_.gather) outgoing_.recv(cut(piece, w), peer, tag_of(call_) | kResultTag);
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
      arrival.messages.recv(arrival.block.select(0, row_of(peer)), peer, tag_of(call_));
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
      if (peer != rank_) outgoing_.send(sum, peer, tag_of(call_) | kResultTag);
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

}  // namespace

GlooBackend::GlooBackend(const Place& place, GroupPtr group, std::string transport)
    : PairwiseBackend(place.rank, place.size),
      store_(place.store),
      links_{std::move(group), place.options.timeout, &store_->call_log(), place.link},
      transport_(std::move(transport)) {}

Backend::WorkPtr GlooBackend::exchange_parts(const Call& call, at::Tensor /*source*/,
                                             std::vector<Part> outgoing,
                                             std::vector<Part> incoming) {
  auto work = std::make_unique<MessageSet>(links_, call);
  for (Part& part : incoming) work->recv(std::move(part.tensor), part.peer, tag_of(call));
  for (Part& part : outgoing) work->send(std::move(part.tensor), part.peer, tag_of(call));
  return work;
}

Backend::WorkPtr GlooBackend::reduce_pieces(const Call& call, Pieces pieces) {
  auto scratch = scratch_.lock();
  if (scratch == nullptr) scratch_ = scratch = std::make_shared<memory::StoragePool>();
  return std::make_unique<PairwiseReduction>(links_, std::move(scratch), call, rank(), size(),
                                             std::move(pieces));
}

Backend::WorkPtr GlooBackend::message(const Call& call, at::Tensor tensor) {
  auto work = std::make_unique<MessageSet>(links_, call);
  work->add(call.operation, std::move(tensor), call.root, kMessageTag);
  return work;
}

}  // namespace zero::dist
