#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/distributed/gloo/pairwise.hpp>
#include <zero/distributed/host/host_communicator.hpp>

namespace zero::dist {
namespace {

// Tags for the messages of one collective; the collective's number separates it from later ones.
constexpr int kMessagesPerCall = 1024;
constexpr int kCallsBeforeTagsRepeat = 1 << 12;
// Ranks in different functions (CallScope) use different tags, so that messages do not mix.
constexpr int kFunctions = 1 << 7;
// Tags of user messages lie above those of collectives.
constexpr int kUserTags = kMessagesPerCall * kCallsBeforeTagsRepeat * kFunctions;

}  // namespace

GlooCommunicator::GlooCommunicator(StoreExchange store, GroupPtr group, int rank, int size,
                                   const ConnectOptions& options, std::string why_not_faster)
    : Communicator(rank, size, options.order, options.check_collectives),
      store_(std::move(store)),
      messenger_(std::move(group), rank, options.timeout, store_.call_log()),
      scratch_(std::make_shared<ArrivalScratch>()),
      options_(options),
      why_not_faster_(std::move(why_not_faster)) {
  set_call_log(store_.call_log());
}

std::string GlooCommunicator::transport() const {
  if (size() == 1) return "none";
  return why_not_faster_.empty() ? "TCP" : fmt::format("TCP ({})", why_not_faster_);
}

std::vector<std::string> GlooCommunicator::exchange(const std::string& text) {
  return store_.exchange(text);
}

std::unique_ptr<Communicator> GlooCommunicator::split(const std::vector<int>& ranks,
                                                      const std::string& label) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  if (mine == ranks.end()) {
    throw Error(
        fmt::format("group '{}' of ranks {{{}}} does not hold rank {}, which called split()", label,
                    fmt::join(ranks, ", "), rank()));
  }
  const int new_rank = static_cast<int>(mine - ranks.begin());
  const int new_size = static_cast<int>(ranks.size());
  if (new_size == 1) {
    return make_group(StoreExchange(nullptr, 0, 1, options_.timeout, /*server=*/-1), nullptr, 0, 1);
  }
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("group/{}/{}", label, fmt::join(ranks, ",")), store_.store());
  GroupPtr group = make_gloo_group(store, new_rank, new_size, options_.loopback, options_.timeout);
  const auto server = std::find(ranks.begin(), ranks.end(), store_.server());
  const int new_server = server == ranks.end() ? -1 : static_cast<int>(server - ranks.begin());
  return make_group(StoreExchange(store, new_rank, new_size, options_.timeout, new_server),
                    std::move(group), new_rank, new_size);
}

std::unique_ptr<Communicator> GlooCommunicator::make_group(StoreExchange store, GroupPtr group,
                                                           int rank, int size) {
  return make_cpu_communicator(std::move(store), std::move(group), rank, size, options_);
}

int GlooCommunicator::first_tag(const Call& call) {
  const auto function =
      static_cast<int>(std::hash<std::string_view>{}(call.public_call) % kFunctions);
  const auto place = static_cast<int>(call.sequence % kCallsBeforeTagsRepeat);
  return (function * kCallsBeforeTagsRepeat + place) * kMessagesPerCall;
}

std::string GlooCommunicator::describe(const Call& call) const {
  const std::string where = step() < 0 ? "" : fmt::format(" in step {}", step());
  const std::string within =
      call.public_call.empty() ? "" : fmt::format(" in {}", call.public_call);
  return fmt::format("{} #{} ({}, {} bytes){}{}", name(call.operation), call.sequence,
                     name(call.purpose), call.bytes, within, where);
}

void GlooCommunicator::check_device(const at::Tensor& tensor) const {
  if (!tensor.device().is_cpu()) {
    throw Error(fmt::format("the gloo backend takes CPU tensors, this one is on {}",
                            tensor.device().str()));
  }
}

// With one rank every operation below is complete at once: the sum over one rank is the tensor
// itself, and so is its average.

Communicator::WorkPtr GlooCommunicator::do_broadcast(const Call& call, at::Tensor tensor,
                                                     int root) {
  if (size() == 1 || tensor.numel() == 0) return nullptr;
  check_device(tensor);
  auto work = std::make_unique<MessageSet>(messenger_, describe(call));
  const int tag = first_tag(call);
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == root) continue;
      work->send(tensor, peer, tag);
      count(call, static_cast<std::int64_t>(tensor.nbytes()));
    }
  } else {
    work->recv(tensor, root, tag);
  }
  return work;
}

Communicator::WorkPtr GlooCommunicator::do_reduce(const Call& call, at::Tensor tensor, int root,
                                                  ReduceOp op) {
  if (size() == 1 || tensor.numel() == 0) return nullptr;
  check_device(tensor);
  if (order() == ReductionOrder::kNative) {
    if (rank() != root) count(call, static_cast<std::int64_t>(tensor.nbytes()));
    // Gloo's reduce leaves partial sums in the others' tensors.
    at::Tensor target = rank() == root ? tensor : tensor.clone();
    return native_reduce(messenger_, describe(call), target, root,
                         rank() == root ? op : ReduceOp::kSum, size());
  }
  // The root's piece is the whole tensor; the others' are empty.
  std::vector<at::Tensor> pieces(static_cast<std::size_t>(size()),
                                 tensor.flatten().narrow(0, 0, 0));
  pieces[static_cast<std::size_t>(root)] = tensor.flatten();
  return pairwise_reduce({messenger_, describe(call), rank(), size(), first_tag(call), scratch_,
                          [this, call](std::int64_t bytes) { count(call, bytes); }, watch(call)},
                         pieces, pieces[static_cast<std::size_t>(rank())], op,
                         /*gather=*/false);
}

Communicator::WorkPtr GlooCommunicator::do_all_reduce(const Call& call, at::Tensor tensor,
                                                      ReduceOp op) {
  if (size() == 1 || tensor.numel() == 0) return nullptr;
  check_device(tensor);
  if (order() == ReductionOrder::kNative) {
    count(call, all_reduce_bytes(tensor.numel(), static_cast<std::int64_t>(tensor.element_size()),
                                 rank(), size()));
    return native_all_reduce(messenger_, describe(call), tensor, op, size());
  }
  const at::Tensor flat = tensor.flatten();
  std::vector<at::Tensor> pieces;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t begin = piece_begin(flat.numel(), r, size());
    pieces.push_back(flat.narrow(0, begin, piece_begin(flat.numel(), r + 1, size()) - begin));
  }
  return pairwise_reduce({messenger_, describe(call), rank(), size(), first_tag(call), scratch_,
                          [this, call](std::int64_t bytes) { count(call, bytes); }, watch(call)},
                         pieces, pieces[static_cast<std::size_t>(rank())], op,
                         /*gather=*/true);
}

Communicator::WorkPtr GlooCommunicator::do_reduce_scatter(const Call& call, at::Tensor output,
                                                          at::Tensor input, ReduceOp op) {
  std::vector<at::Tensor> pieces = input.flatten().chunk(size());
  if (input.numel() == 0) return nullptr;
  check_device(input);
  if (size() == 1) {
    if (!output.is_alias_of(input)) output.copy_(input.view_as(output));
    return nullptr;
  }
  if (order() == ReductionOrder::kNative) {
    // Gloo has no reduce-scatter: c10d runs a whole all-reduce of a copy and cuts out one piece.
    count(call, all_reduce_bytes(input.numel(), static_cast<std::int64_t>(input.element_size()),
                                 rank(), size()));
    return native_reduce_scatter(messenger_, describe(call), output, pieces, op, size());
  }
  return pairwise_reduce({messenger_, describe(call), rank(), size(), first_tag(call), scratch_,
                          [this, call](std::int64_t bytes) { count(call, bytes); }, watch(call)},
                         pieces, output.flatten(), op, /*gather=*/false);
}

Communicator::WorkPtr GlooCommunicator::do_all_gather(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (input.numel() == 0) return nullptr;
  check_device(input);
  const std::vector<at::Tensor> pieces = output.flatten().chunk(size());
  const at::Tensor& mine = pieces[static_cast<std::size_t>(rank())];
  const at::Tensor source = input.flatten();
  if (size() > 1) count(call, static_cast<std::int64_t>(input.nbytes()) * (size() - 1));
  if (order() == ReductionOrder::kNative && size() > 1) {
    return native_all_gather(messenger_, describe(call), pieces, source);
  }
  const bool writes = call.copy_own_chunk && mine.data_ptr() != source.data_ptr();
  if (writes) mine.copy_(source);
  if (size() == 1) return nullptr;
  auto work = std::make_unique<MessageSet>(messenger_, describe(call));
  const int tag = first_tag(call);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    work->recv(pieces[static_cast<std::size_t>(peer)], peer, tag);
    work->send(writes ? mine : source, peer, tag);
  }
  return work;
}

Communicator::WorkPtr GlooCommunicator::do_all_to_all(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (input.numel() == 0) return nullptr;
  check_device(input);
  const std::vector<at::Tensor> to = input.flatten().chunk(size());
  const std::vector<at::Tensor> from = output.flatten().chunk(size());
  auto work = std::make_unique<MessageSet>(messenger_, describe(call));
  const int tag = first_tag(call);
  for (int peer = 0; peer < size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (peer == rank()) {
      from[p].copy_(to[p]);
      continue;
    }
    work->recv(from[p], peer, tag);
    work->send(to[p], peer, tag);
    count(call, static_cast<std::int64_t>(to[p].nbytes()));
  }
  return work;
}

Communicator::WorkPtr GlooCommunicator::do_send(const Call& call, at::Tensor tensor,
                                                int destination, int tag) {
  if (destination == rank()) throw Error("send: a rank cannot send to itself");
  check_device(tensor);
  auto work = std::make_unique<MessageSet>(messenger_, describe(call));
  work->send(tensor, destination, kUserTags + tag);
  count(call, static_cast<std::int64_t>(tensor.nbytes()));
  return work;
}

Communicator::WorkPtr GlooCommunicator::do_recv(const Call& call, at::Tensor tensor, int source,
                                                int tag) {
  if (source == rank()) throw Error("recv: a rank cannot receive from itself");
  check_device(tensor);
  auto work = std::make_unique<MessageSet>(messenger_, describe(call));
  work->recv(tensor, source, kUserTags + tag);
  return work;
}

}  // namespace zero::dist
