#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/distributed/host/host_communicator.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/memory/storage.hpp>

namespace zero::dist {
namespace {

// Tags for the messages of one collective; the collective's number separates it from later ones.
constexpr int kMessagesPerCall = 1024;
constexpr int kCallsBeforeTagsRepeat = 1 << 12;
// Ranks in different functions (CallScope) use different tags, so that messages do not mix.
constexpr int kFunctions = 1 << 7;
// The tag of send() and recv() lies above those of collectives.
constexpr int kUserTag = kMessagesPerCall * kCallsBeforeTagsRepeat * kFunctions;

int first_tag(const Communicator::Call& call) {
  const auto function = static_cast<int>(base::fnv1a(call.public_call) % kFunctions);
  const auto place = static_cast<int>(call.sequence % kCallsBeforeTagsRepeat);
  return (function * kCallsBeforeTagsRepeat + place) * kMessagesPerCall;
}

// Pieces are cut into windows. This keeps the scratch small and lets one window travel while
// another is added up: at most kWindows are in flight.
constexpr std::int64_t kWindows = 2;

// See GlooCommunicator::reduce_pieces(). Scratch for what arrives from peers: at most kScratchBytes
// for each reduction.
class PairwiseReduction final : public Work::Backend {
 public:
  PairwiseReduction(const GlooLinks& links, ArrivalScratch& scratch, const Communicator::Call& call,
                    int rank, std::vector<at::Tensor> pieces, at::Tensor output, int divisor,
                    bool gather, Communicator::Watch watch)
      : links_(links),
        scratch_(scratch),
        call_(call),
        rank_(rank),
        size_(static_cast<int>(pieces.size())),
        pieces_(std::move(pieces)),
        output_(std::move(output)),
        divisor_(divisor),
        gather_(gather),
        watch_(std::move(watch)),
        window_(std::max<std::int64_t>(1, kScratchBytes / kWindows / (size_ - 1) /
                                              static_cast<std::int64_t>(output_.element_size()))),
        outgoing_(links, call) {
    // Receives first: a message that finds its receive posted is copied once, not twice.
    for (std::int64_t w = 0; w < kWindows; ++w) post_receives(w);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const at::Tensor& piece = pieces_[static_cast<std::size_t>(peer)];
      for (std::int64_t w = 0; w * window_ < piece.numel(); ++w) {
        outgoing_.send(cut(piece, w), peer, contribution_tag(w));
        // The owner sends its result into the tensor that was sent to it. That is safe: it answers
        // only after it has received the whole contribution.
        if (gather_) outgoing_.recv(cut(piece, w), peer, result_tag(w));
      }
    }
    ++scratch_.reductions;
  }
  ~PairwiseReduction() override {
    if (--scratch_.reductions == 0) scratch_.pool.clear();
  }
  PairwiseReduction(const PairwiseReduction&) = delete;
  PairwiseReduction& operator=(const PairwiseReduction&) = delete;

  void wait() override {
    for (std::int64_t w = 0; w * window_ < output_.numel(); ++w) {
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

  int contribution_tag(std::int64_t w) const {
    return first_tag(call_) + static_cast<int>(w % 512);
  }
  int result_tag(std::int64_t w) const { return contribution_tag(w) + 512; }

  at::Tensor cut(const at::Tensor& piece, std::int64_t w) const {
    const std::int64_t begin = w * window_;
    return piece.narrow(0, begin, std::min(window_, piece.numel() - begin));
  }

  void post_receives(std::int64_t w) {
    if (w * window_ >= output_.numel()) return;
    const std::int64_t n = cut(output_, w).numel();
    Arrival& arrival = arrivals_.emplace_back(Arrival{
        memory::without_storage({size_ - 1, n}, output_.scalar_type()), MessageSet(links_, call_)});
    scratch_.pool.allocate(arrival.block, memory::Category::kCommunication);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      arrival.messages.recv(arrival.block.select(0, row_of(peer)), peer, contribution_tag(w));
    }
  }

  int row_of(int peer) const { return peer < rank_ ? peer : peer - 1; }

  void add_up(std::int64_t w) {
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    arrival.messages.wait();
    std::vector<at::Tensor> contributions;
    for (int rank = 0; rank < size_; ++rank) {
      contributions.push_back(rank == rank_ ? cut(pieces_[static_cast<std::size_t>(rank)], w)
                                            : arrival.block.select(0, row_of(rank)));
    }
    const at::Tensor sum = cut(output_, w);
    const SumCheck check = sum_in_rank_order(sum, contributions, divisor_);
    if (!check.finite && watch_) watch_(sum, contributions, check.overwritten_finite);
    scratch_.pool.release(arrival.block);
    if (!gather_) return;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) outgoing_.send(sum, peer, result_tag(w));
    }
  }

  const GlooLinks& links_;
  ArrivalScratch& scratch_;
  Communicator::Call call_;
  int rank_;
  int size_;
  std::vector<at::Tensor> pieces_;
  at::Tensor output_;
  int divisor_;
  bool gather_;
  Communicator::Watch watch_;
  std::int64_t window_;  // elements
  MessageSet outgoing_;
  std::deque<Arrival> arrivals_;
};

// One of Gloo's own reductions, for comparison. It knows sums only.
Communicator::WorkPtr native_sum(const GlooLinks& links, const Communicator::Call& call,
                                 MessageSet::Message collective, const at::Tensor& result,
                                 int divisor) {
  auto work = std::make_unique<MessageSet>(links, call, [result, divisor] {
    if (divisor != 1) at::Tensor(result).div_(divisor);
  });
  work->add(std::move(collective));
  return work;
}

}  // namespace

GlooCommunicator::GlooCommunicator(StoreExchange store, GroupPtr group,
                                   const ConnectOptions& options, std::string transport)
    : Communicator(store.rank(), store.size(), options.order, options.check_collectives),
      store_(std::move(store)),
      links_{std::move(group), options.timeout, store_.call_log()},
      options_(options),
      transport_(std::move(transport)) {
  set_call_log(store_.call_log());
}

std::vector<std::string> GlooCommunicator::exchange(const std::string& text) {
  return store_.exchange(text);
}

std::unique_ptr<Communicator> GlooCommunicator::do_split(const std::vector<int>& ranks,
                                                         const std::string& label) {
  const int new_rank = rank_among(ranks, label);
  const int new_size = static_cast<int>(ranks.size());
  if (new_size == 1) return make_group(StoreExchange(options_.timeout), nullptr);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group/{}/{}", label, fmt::join(ranks, ",")), store_.store());
  GroupPtr group = make_gloo_group(store, new_rank, new_size, options_.loopback, options_.timeout);
  const auto server = std::find(ranks.begin(), ranks.end(), store_.server());
  const int new_server = server == ranks.end() ? -1 : static_cast<int>(server - ranks.begin());
  return make_group(StoreExchange(store, new_rank, new_size, options_.timeout, new_server),
                    std::move(group));
}

std::unique_ptr<Communicator> GlooCommunicator::make_group(StoreExchange store, GroupPtr group) {
  return make_cpu_communicator(std::move(store), std::move(group), options_);
}

void GlooCommunicator::check_device(const at::Tensor& tensor) const {
  if (!tensor.device().is_cpu()) {
    throw Error(fmt::format("the gloo backend takes CPU tensors, this one is on {}",
                            tensor.device().str()));
  }
}

std::vector<int> GlooCommunicator::others() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) ranks.push_back(r);
  }
  return ranks;
}

Communicator::WorkPtr GlooCommunicator::exchange_parts(const Call& call, at::Tensor /*source*/,
                                                       std::int64_t /*offset*/,
                                                       std::vector<Part> outgoing,
                                                       std::vector<Part> incoming) {
  auto work = std::make_unique<MessageSet>(links_, call);
  for (Part& part : incoming) work->recv(std::move(part.tensor), part.peer, first_tag(call));
  for (Part& part : outgoing) work->send(std::move(part.tensor), part.peer, first_tag(call));
  return work;
}

Communicator::WorkPtr GlooCommunicator::reduce_pieces(const Call& call, at::Tensor input,
                                                      std::vector<std::int64_t> bounds,
                                                      at::Tensor output, int divisor, bool gather) {
  return std::make_unique<PairwiseReduction>(links_, scratch_, call, rank(), cut(input, bounds),
                                             std::move(output), divisor, gather, watch(call));
}

std::vector<at::Tensor> GlooCommunicator::cut(const at::Tensor& input,
                                              const std::vector<std::int64_t>& bounds) {
  std::vector<at::Tensor> pieces;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
    pieces.push_back(input.narrow(0, bounds[p], bounds[p + 1] - bounds[p]));
  }
  return pieces;
}

std::vector<std::int64_t> GlooCommunicator::even_bounds(std::int64_t elements) const {
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= size(); ++r) bounds.push_back(piece_begin(elements, r, size()));
  return bounds;
}

Communicator::WorkPtr GlooCommunicator::do_broadcast(const Call& call, at::Tensor tensor,
                                                     int root) {
  if (rank() != root) return exchange_parts(call, tensor, 0, {}, {{root, tensor}});
  std::vector<Part> outgoing;
  for (const int peer : others()) outgoing.push_back({peer, tensor});
  return exchange_parts(call, tensor, 0, std::move(outgoing), {});
}

Communicator::WorkPtr GlooCommunicator::do_reduce(const Call& call, at::Tensor tensor, int root,
                                                  int divisor) {
  if (native()) {
    // Gloo's reduce leaves partial sums in the others' tensors.
    std::vector<at::Tensor> tensors{rank() == root ? tensor : tensor.clone()};
    c10d::ReduceOptions options;
    options.rootRank = root;
    return native_sum(links_, call, group()->reduce(tensors, options), tensors.front(),
                      rank() == root ? divisor : 1);
  }
  // The root's piece is the whole tensor; the others' are empty.
  const at::Tensor flat = tensor.flatten();
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= size(); ++r) bounds.push_back(r <= root ? 0 : flat.numel());
  return reduce_pieces(call, flat, bounds, cut(flat, bounds)[me()], divisor, /*gather=*/false);
}

Communicator::WorkPtr GlooCommunicator::do_all_reduce(const Call& call, at::Tensor tensor,
                                                      int divisor) {
  if (native()) {
    std::vector<at::Tensor> tensors{tensor};
    return native_sum(links_, call, group()->allreduce(tensors), tensor, divisor);
  }
  const at::Tensor flat = tensor.flatten();
  const std::vector<std::int64_t> bounds = even_bounds(flat.numel());
  return reduce_pieces(call, flat, bounds, cut(flat, bounds)[me()], divisor, /*gather=*/true);
}

Communicator::WorkPtr GlooCommunicator::do_reduce_scatter(const Call& call, at::Tensor output,
                                                          at::Tensor input, int divisor) {
  const at::Tensor flat = input.flatten();
  if (native()) {
    // Gloo has no reduce-scatter: c10d runs a whole all-reduce of a copy and cuts out one piece. An
    // all-reduce sends twice as much.
    count_each(call, [&](int) { return static_cast<std::int64_t>(output.nbytes()); });
    std::vector<at::Tensor> outputs{output.flatten()};
    std::vector<std::vector<at::Tensor>> inputs{flat.chunk(size())};
    return native_sum(links_, call, group()->reduce_scatter(outputs, inputs), output, divisor);
  }
  return reduce_pieces(call, flat, even_bounds(flat.numel()), output.flatten(), divisor,
                       /*gather=*/false);
}

Communicator::WorkPtr GlooCommunicator::do_all_gather(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  const std::vector<at::Tensor> pieces = output.flatten().chunk(size());
  const at::Tensor source = input.flatten();
  if (call.copy_own_chunk && pieces[me()].const_data_ptr() != source.const_data_ptr()) {
    pieces[me()].copy_(source);
  }
  std::vector<Part> outgoing, incoming;
  for (const int peer : others()) {
    outgoing.push_back({peer, source});
    incoming.push_back({peer, pieces[static_cast<std::size_t>(peer)]});
  }
  return exchange_parts(call, source, 0, std::move(outgoing), std::move(incoming));
}

Communicator::WorkPtr GlooCommunicator::do_all_to_all(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  const std::vector<at::Tensor> to = input.flatten().chunk(size());
  const std::vector<at::Tensor> from = output.flatten().chunk(size());
  from[me()].copy_(to[me()]);
  std::vector<Part> outgoing, incoming;
  for (const int peer : others()) {
    outgoing.push_back({peer, to[static_cast<std::size_t>(peer)]});
    incoming.push_back({peer, from[static_cast<std::size_t>(peer)]});
  }
  return exchange_parts(call, input, rank() * static_cast<std::int64_t>(to[me()].nbytes()),
                        std::move(outgoing), std::move(incoming));
}

Communicator::WorkPtr GlooCommunicator::do_message(const Call& call, at::Tensor tensor, int peer) {
  auto work = std::make_unique<MessageSet>(links_, call);
  if (call.operation == Operation::kSend) {
    work->send(std::move(tensor), peer, kUserTag);
  } else {
    work->recv(std::move(tensor), peer, kUserTag);
  }
  return work;
}

}  // namespace zero::dist
