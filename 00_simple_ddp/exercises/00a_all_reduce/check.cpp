// Compares with the sum by formula, and the bytes with those of a reduce-scatter and an all-gather.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "00a.hpp"

namespace exercise_00a {

using zero::dist::Communicator;
using zero::dist::Operation;
using zero::exercise::Mistake;

// What looks wrong about the tensor that a rank ended with. All values are whole numbers, so sums
// are exact in any order.
std::string explain_sum(const at::Tensor& result, const at::Tensor& right, const at::Tensor& before,
                        int ranks) {
  const std::int64_t n = result.numel();
  if (result.equal(before)) {
    return fmt::format(
        "the tensor of {} elements has not changed: copy_() writes into it, an assignment changes "
        "the variable only",
        n);
  }
  if (result.mul(ranks).equal(right)) {
    return "every element is the average, not the sum: pass ReduceOp::kSum";
  }
  const std::int64_t tail = n % ranks;
  if (result.narrow(0, 0, n - tail).equal(right.narrow(0, 0, n - tail))) {
    return fmt::format("of {} elements the last {} are not the sum: a tail is dropped", n, tail);
  }
  const std::int64_t first = result.ne(right).nonzero()[0].item<std::int64_t>();
  return fmt::format("of {} elements number {} is {} and the sum is {}", n, first,
                     result[first].item<float>(), right[first].item<float>());
}

void check_sum(const Answer& answer, Communicator& communicator, std::int64_t n) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  const at::Tensor before = at::arange(n, at::kFloat) + 100 * (rank + 1);
  const at::Tensor right = at::arange(n, at::kFloat) * ranks + 50 * ranks * (ranks + 1);
  at::Tensor tensor = before.clone();
  const zero::dist::Traffic earlier = communicator.traffic();
  answer.all_reduce(communicator, tensor);
  if (!tensor.equal(right)) throw Mistake(explain_sum(tensor, right, before, ranks));

  const std::int64_t padded = (n + ranks - 1) / ranks * ranks;
  const std::int64_t half = 4 * padded * (ranks - 1) / ranks;
  const zero::dist::Traffic sent = communicator.traffic().since(earlier);
  const auto sent_by = [&](Operation operation) {
    std::int64_t bytes = 0;
    for (const auto& entry : sent.entries[static_cast<std::size_t>(operation)])
      bytes += entry.bytes;
    return bytes;
  };
  for (const Operation operation : {Operation::kReduceScatter, Operation::kAllGather}) {
    if (sent_by(operation) == half) continue;
    if (sent_by(operation) == half + 4 * (ranks - 1) && padded == n) {
      throw Mistake(fmt::format(
          "rank {} sends {} bytes for {} elements where {} are enough: zeros are added where none "
          "are needed",
          rank, sent.bytes(), n, 2 * half));
    }
    throw Mistake(
        fmt::format("rank {} sends {} bytes for {} elements by {}, where (N-1)/N of them are {}",
                    rank, sent_by(operation), n, zero::dist::name(operation), half));
  }
  if (sent.bytes() != 2 * half) {
    throw Mistake(
        fmt::format("rank {} sends {} bytes by other collectives", rank, sent.bytes() - 2 * half));
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    for (const std::int64_t n : {12, 7, 1}) check_sum(answer, communicator, n);
  });
}

}  // namespace exercise_00a
