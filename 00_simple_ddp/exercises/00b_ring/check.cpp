// Compares with the sum by formula, and the bytes of the rank that sends most with those of a ring.

#include <fmt/format.h>

#include "00b.hpp"
#include "watched.hpp"

namespace exercise_00b {

using zero::dist::Communicator;
using zero::exercise::Mistake;

// Called by all ranks: what this rank sends too much, or nothing.
void check_bytes(Communicator& communicator, std::int64_t mine, std::int64_t n) {
  const int ranks = communicator.size();
  const std::int64_t most = 2 * (ranks - 1) * 4 * ((n + ranks - 1) / ranks);
  const auto all = all_gather_scalars(communicator, {static_cast<double>(mine)});
  const double least = *std::min_element(all.begin(), all.end());
  if (mine > most) {
    throw Mistake(fmt::format("rank {} sends {} bytes for {} elements, and a ring at most {}: {}",
                              communicator.rank(), mine, n, most,
                              least < static_cast<double>(mine)
                                  ? "everything passes through it"
                                  : "whole tensors go round where pieces are enough"));
  }
}

void check_sum(const Answer& answer, Communicator& communicator, Board& board, std::int64_t n) {
  const int ranks = communicator.size();
  // Whole numbers: their sums are exact in any order.
  at::Tensor tensor = at::arange(n, at::kFloat) + 100 * (communicator.rank() + 1);
  const at::Tensor right = at::arange(n, at::kFloat) * ranks + 50 * ranks * (ranks + 1);
  const std::int64_t before = communicator.traffic().bytes();
  {
    const Watched watched(communicator, board);
    answer.ring_all_reduce(communicator, tensor);
  }
  // Without the barrier before it, of a byte to each other rank.
  check_bytes(communicator, communicator.traffic().bytes() - before - (ranks - 1), n);
  if (tensor.equal(right)) return;
  const std::int64_t first = tensor.ne(right).nonzero()[0].item<std::int64_t>();
  throw Mistake(fmt::format("rank {}: of {} elements number {} is {} and the sum is {}",
                            communicator.rank(), n, first, tensor[first].item<float>(),
                            right[first].item<float>()));
}

void check(const Answer& answer) {
  for (const int ranks : {2, 3, 5, 1}) {
    Board& board = *new_board();
    zero::exercise::on_ranks(ranks, [&](Communicator& communicator) {
      for (const std::int64_t n : {12, 7, 1}) check_sum(answer, communicator, board, n);
    });
  }
}

}  // namespace exercise_00b
