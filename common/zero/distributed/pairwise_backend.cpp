#include <numeric>
#include <utility>

#include <zero/distributed/not_finite.hpp>
#include <zero/distributed/pairwise_backend.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {

Pieces::Pieces(const Call& call, int rank, int size, const at::Tensor& result,
               const at::Tensor& whole)
    : input(whole.flatten()), gather(call.operation == Operation::kAllReduce) {
  for (int r = 0; r <= size; ++r) {
    bounds.push_back(call.operation != Operation::kReduce ? piece_begin(input.numel(), r, size)
                     : r <= call.root                     ? 0
                                                          : input.numel());
  }
  output = call.operation == Operation::kReduceScatter ? result.flatten() : of(rank);
}

std::int64_t Pieces::length(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return bounds[r + 1] - bounds[r];
}

std::int64_t Pieces::offset(int rank) const {
  return bounds[static_cast<std::size_t>(rank)] * static_cast<std::int64_t>(input.element_size());
}

at::Tensor Pieces::of(int rank) const {
  return input.narrow(0, bounds[static_cast<std::size_t>(rank)], length(rank));
}

void add_up(const Call& call, const at::Tensor& sum, const std::vector<at::Tensor>& contributions) {
  const SumCheck check = sum_in_rank_order(sum, contributions, call.divisor);
  if (check.finite || call.not_finite == nullptr) return;
  std::vector<int> ranks(contributions.size(), -1);
  if (!call.adds_sums) std::iota(ranks.begin(), ranks.end(), 0);
  call.not_finite->find(sum, contributions, ranks, check.overwritten_finite);
}

Backend::WorkPtr PairwiseBackend::start(const Call& call, at::Tensor output, at::Tensor input) {
  if (adds_up(call.operation)) {
    return reduce_pieces(call, Pieces(call, rank_, size_, output, input));
  }
  if (call.operation == Operation::kSend || call.operation == Operation::kRecv) {
    return message(call, std::move(input));
  }
  return exchange(call, output, input);
}

Backend::WorkPtr PairwiseBackend::exchange(const Call& call, const at::Tensor& output,
                                           const at::Tensor& input) {
  using Tensors = std::vector<at::Tensor>;
  const auto me = static_cast<std::size_t>(rank_), size = static_cast<std::size_t>(size_);
  const bool casts = call.operation == Operation::kBroadcast;
  const bool cuts = call.operation == Operation::kAllToAll;
  const at::Tensor source = input.flatten(), whole = output.flatten();
  // from[p] goes to rank p, and to[p] comes from it.
  const Tensors from = cuts ? source.chunk(size_) : Tensors(size, source);
  const Tensors to = casts ? Tensors(size, whole) : whole.chunk(size_);
  if (call.copy_own_chunk && to[me].const_data_ptr() != from[me].const_data_ptr()) {
    to[me].copy_(from[me]);
  }
  // Of this rank's piece in the input of another.
  const std::int64_t offset = cuts ? rank_ * static_cast<std::int64_t>(from[me].nbytes()) : 0;
  std::vector<Part> outgoing, incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto p = static_cast<std::size_t>(peer);
    if (!casts || rank_ == call.root) outgoing.push_back({peer, from[p]});
    if (!casts || peer == call.root) incoming.push_back({peer, to[p], offset});
  }
  return exchange_parts(call, source, std::move(outgoing), std::move(incoming));
}

}  // namespace zero::dist
