#include <algorithm>
#include <deque>
#include <utility>

#include <zero/distributed/gloo/pairwise.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/memory/storage.hpp>

namespace zero::dist {

void MessageSet::send(const at::Tensor& tensor, int to, int tag) {
  messages_.push_back({messenger_.send(tensor, to, tag, what_), to});
}

void MessageSet::recv(const at::Tensor& tensor, int from, int tag) {
  messages_.push_back({messenger_.recv(tensor, from, tag, what_), from});
}

void MessageSet::wait() {
  for (const Message& message : messages_) messenger_.wait(message.work, what_, message.peer);
  messages_.clear();
}

at::Tensor ArrivalScratch::take(std::int64_t rows, std::int64_t elements, at::ScalarType dtype) {
  at::Tensor block = memory::without_storage({rows, elements}, dtype);
  pool_.allocate(block, memory::Category::kCommunication);
  return block;
}

namespace {

// Pieces are cut into windows. This keeps the scratch small and lets one window travel while
// another is added up: at most kWindows are in flight.
constexpr std::int64_t kWindows = 2;

std::int64_t window_elements(std::int64_t element_size, int size) {
  return std::max<std::int64_t>(1, kScratchBytes / kWindows / (size - 1) / element_size);
}

class PairwiseReduction final : public Work::Backend {
 public:
  PairwiseReduction(Surroundings s, std::vector<at::Tensor> pieces, at::Tensor output, ReduceOp op,
                    bool gather)
      : s_(std::move(s)),
        uses_scratch_(s_.scratch),
        pieces_(std::move(pieces)),
        output_(std::move(output)),
        op_(op),
        gather_(gather),
        window_(window_elements(static_cast<std::int64_t>(output_.element_size()), s_.size)),
        outgoing_(s_.messenger, s_.what) {
    // Receives first: a message that finds its receive posted is copied once, not twice.
    for (std::int64_t w = 0; w < kWindows; ++w) post_receives(w);
    for (int peer = 0; peer < s_.size; ++peer) {
      if (peer == s_.rank) continue;
      const at::Tensor& piece = pieces_[static_cast<std::size_t>(peer)];
      for (std::int64_t w = 0; w * window_ < piece.numel(); ++w) {
        send(cut(piece, w), peer, contribution_tag(w));
        // The owner sends its result into the tensor that was sent to it. That is safe: it answers
        // only after it has received the whole contribution.
        if (gather_) outgoing_.recv(cut(piece, w), peer, result_tag(w));
      }
    }
  }

  void wait() override {
    for (std::int64_t w = 0; w * window_ < output_.numel(); ++w) {
      add_up(w);
      post_receives(w + kWindows);
    }
    outgoing_.wait();
  }

 private:
  struct Arrival {
    at::Tensor scratch;  // [size - 1, window]
    std::vector<Messenger::WorkPtr> works;
  };

  int contribution_tag(std::int64_t w) const { return s_.first_tag + static_cast<int>(w % 512); }
  int result_tag(std::int64_t w) const { return contribution_tag(w) + 512; }

  at::Tensor cut(const at::Tensor& piece, std::int64_t w) const {
    const std::int64_t begin = w * window_;
    return piece.narrow(0, begin, std::min(window_, piece.numel() - begin));
  }

  void send(const at::Tensor& tensor, int peer, int tag) {
    outgoing_.send(tensor, peer, tag);
    s_.count_sent(static_cast<std::int64_t>(tensor.nbytes()));
  }

  void post_receives(std::int64_t w) {
    if (w * window_ >= output_.numel()) return;
    const std::int64_t n = cut(output_, w).numel();
    Arrival arrival{s_.scratch->take(s_.size - 1, n, output_.scalar_type()), {}};
    for (int peer = 0; peer < s_.size; ++peer) {
      if (peer == s_.rank) continue;
      arrival.works.push_back(s_.messenger.recv(arrival.scratch.select(0, row_of(peer)), peer,
                                                contribution_tag(w), s_.what));
    }
    arrivals_.push_back(std::move(arrival));
  }

  int row_of(int peer) const { return peer < s_.rank ? peer : peer - 1; }

  void add_up(std::int64_t w) {
    const Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    std::vector<at::Tensor> contributions;
    for (int rank = 0; rank < s_.size; ++rank) {
      if (rank == s_.rank) {
        contributions.push_back(cut(pieces_[static_cast<std::size_t>(rank)], w));
        continue;
      }
      s_.messenger.wait(arrival.works[static_cast<std::size_t>(row_of(rank))], s_.what, rank);
      contributions.push_back(arrival.scratch.select(0, row_of(rank)));
    }
    const at::Tensor sum = cut(output_, w);
    const int divisor = op_ == ReduceOp::kAverage ? s_.size : 1;
    const SumCheck check = sum_in_rank_order(sum, contributions, divisor);
    if (!check.finite && s_.watch) s_.watch(sum, contributions, check.overwritten_finite);
    s_.scratch->give_back(arrival.scratch);
    if (!gather_) return;
    for (int peer = 0; peer < s_.size; ++peer) {
      if (peer != s_.rank) send(sum, peer, result_tag(w));
    }
  }

  Surroundings s_;
  ArrivalScratch::User uses_scratch_;  // declared first: destroyed after the tensors taken from it
  std::vector<at::Tensor> pieces_;
  at::Tensor output_;
  ReduceOp op_;
  bool gather_;
  std::int64_t window_;
  MessageSet outgoing_;
  std::deque<Arrival> arrivals_;
};

// One of c10d's own collectives, then the remaining work on its result.
class NativeWork final : public Work::Backend {
 public:
  NativeWork(Messenger messenger, std::string what, Messenger::WorkPtr work,
             std::function<void()> after)
      : messenger_(std::move(messenger)),
        what_(std::move(what)),
        work_(std::move(work)),
        after_(std::move(after)) {}

  void wait() override {
    messenger_.wait(work_, what_, /*peer=*/-1);
    if (after_) after_();
  }

 private:
  Messenger messenger_;
  std::string what_;
  Messenger::WorkPtr work_;
  std::function<void()> after_;
};

std::function<void()> divide(const at::Tensor& tensor, ReduceOp op, int size) {
  if (op == ReduceOp::kSum) return {};
  return [tensor, size] { at::Tensor(tensor).div_(size); };
}

}  // namespace

Communicator::WorkPtr pairwise_reduce(Surroundings surroundings, std::vector<at::Tensor> pieces,
                                      at::Tensor output, ReduceOp op, bool gather) {
  return std::make_unique<PairwiseReduction>(std::move(surroundings), std::move(pieces),
                                             std::move(output), op, gather);
}

Communicator::WorkPtr native_all_reduce(const Messenger& messenger, std::string what,
                                        at::Tensor tensor, ReduceOp op, int size) {
  std::vector<at::Tensor> tensors{tensor};
  auto work = messenger.group()->allreduce(tensors);
  return std::make_unique<NativeWork>(messenger, std::move(what), std::move(work),
                                      divide(tensor, op, size));
}

Communicator::WorkPtr native_reduce(const Messenger& messenger, std::string what, at::Tensor tensor,
                                    int root, ReduceOp op, int size) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::ReduceOptions options;
  options.rootRank = root;
  auto work = messenger.group()->reduce(tensors, options);
  return std::make_unique<NativeWork>(messenger, std::move(what), std::move(work),
                                      divide(tensor, op, size));
}

Communicator::WorkPtr native_reduce_scatter(const Messenger& messenger, std::string what,
                                            at::Tensor output, std::vector<at::Tensor> pieces,
                                            ReduceOp op, int size) {
  std::vector<at::Tensor> outputs{output.flatten()};
  std::vector<std::vector<at::Tensor>> inputs{std::move(pieces)};
  auto work = messenger.group()->reduce_scatter(outputs, inputs);
  return std::make_unique<NativeWork>(messenger, std::move(what), std::move(work),
                                      divide(output, op, size));
}

Communicator::WorkPtr native_all_gather(const Messenger& messenger, std::string what,
                                        std::vector<at::Tensor> pieces, at::Tensor input) {
  std::vector<std::vector<at::Tensor>> outputs{std::move(pieces)};
  std::vector<at::Tensor> inputs{std::move(input)};
  auto work = messenger.group()->allgather(outputs, inputs);
  return std::make_unique<NativeWork>(messenger, std::move(what), std::move(work),
                                      std::function<void()>());
}

}  // namespace zero::dist
