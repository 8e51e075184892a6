#include <utility>

#include <zero/distributed/not_finite.hpp>
#include <zero/distributed/pairwise_backend.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {

Pieces::Pieces(const Call& call, int rank, int size, const at::Tensor& whole, at::Tensor result)
    : input(whole.flatten()), gather(call.operation == Operation::kAllReduce) {
  for (int r = 0; r <= size; ++r) {
    bounds.push_back(call.operation != Operation::kReduce ? piece_begin(input.numel(), r, size)
                     : r <= call.root                     ? 0
                                                          : input.numel());
  }
  output = result.defined() ? result.flatten() : of(rank);
}

std::int64_t Pieces::length(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return bounds[r + 1] - bounds[r];
}

at::Tensor Pieces::of(int rank) const {
  return input.narrow(0, bounds[static_cast<std::size_t>(rank)], length(rank));
}

void add_up(const Call& call, const at::Tensor& sum, const std::vector<at::Tensor>& contributions) {
  const SumCheck check = sum_in_rank_order(sum, contributions, call.divisor);
  if (check.finite || call.not_finite == nullptr) return;
  call.not_finite->find(sum, contributions, check.overwritten_finite, call.adds_sums);
}

Backend::WorkPtr PairwiseBackend::broadcast(const Call& call, at::Tensor tensor) {
  if (rank_ != call.root) return exchange_parts(call, tensor, {}, {{call.root, tensor}});
  std::vector<Part> outgoing;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) outgoing.push_back({peer, tensor});
  }
  return exchange_parts(call, tensor, std::move(outgoing), {});
}

Backend::WorkPtr PairwiseBackend::reduce(const Call& call, at::Tensor tensor) {
  return reduce_pieces(call, Pieces(call, rank_, size_, tensor));
}

Backend::WorkPtr PairwiseBackend::all_reduce(const Call& call, at::Tensor tensor) {
  return reduce_pieces(call, Pieces(call, rank_, size_, tensor));
}

Backend::WorkPtr PairwiseBackend::reduce_scatter(const Call& call, at::Tensor output,
                                                 at::Tensor input) {
  return reduce_pieces(call, Pieces(call, rank_, size_, input, std::move(output)));
}

Backend::WorkPtr PairwiseBackend::all_gather(const Call& call, at::Tensor output,
                                             at::Tensor input) {
  const std::vector<at::Tensor> to = output.flatten().chunk(size_);
  const at::Tensor source = input.flatten();
  const at::Tensor& own = to[static_cast<std::size_t>(rank_)];
  if (call.copy_own_chunk && own.const_data_ptr() != source.const_data_ptr()) own.copy_(source);
  std::vector<Part> outgoing, incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    outgoing.push_back({peer, source});
    incoming.push_back({peer, to[static_cast<std::size_t>(peer)]});
  }
  return exchange_parts(call, source, std::move(outgoing), std::move(incoming));
}

Backend::WorkPtr PairwiseBackend::all_to_all(const Call& call, at::Tensor output,
                                             at::Tensor input) {
  const std::vector<at::Tensor> from = input.flatten().chunk(size_);
  const std::vector<at::Tensor> to = output.flatten().chunk(size_);
  const auto me = static_cast<std::size_t>(rank_);
  to[me].copy_(from[me]);
  const auto offset = rank_ * static_cast<std::int64_t>(from[me].nbytes());  // of this rank's piece
  std::vector<Part> outgoing, incoming;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    outgoing.push_back({peer, from[static_cast<std::size_t>(peer)]});
    incoming.push_back({peer, to[static_cast<std::size_t>(peer)], offset});
  }
  return exchange_parts(call, input, std::move(outgoing), std::move(incoming));
}

}  // namespace zero::dist
