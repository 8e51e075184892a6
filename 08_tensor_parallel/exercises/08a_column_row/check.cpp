// Cuts a pair of layers, and compares what the ranks compute together with what one computes alone.
// All values are whole numbers, which add up exactly in any order.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <grading/check.hpp>

#include "08a.hpp"

namespace exercise_08a {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr std::int64_t kTokens = 6, kInputs = 4, kFeatures = 30, kOutputs = 3;

at::Tensor whole_numbers(at::IntArrayRef sizes, int seed) {
  at::manual_seed(seed);
  return at::randint(-2, 3, sizes, at::kFloat);
}

Pair whole_pair() {
  return {whole_numbers({kInputs + 1, kFeatures}, 1), whole_numbers({kFeatures + 1, kOutputs}, 2)};
}

// This rank's part of a weight, or of its gradient.
at::Tensor columns_of(const at::Tensor& first, const Communicator& axis) {
  return first.chunk(axis.size(), 1)[static_cast<std::size_t>(axis.rank())];
}
at::Tensor rows_of(const at::Tensor& second, const Communicator& axis) {
  const std::int64_t rows = kFeatures / axis.size();
  return second.narrow(0, axis.rank() * rows, rows + (axis.rank() == axis.size() - 1 ? 1 : 0));
}

void check_weight(const char* name, const at::Tensor& mine, const at::Tensor& right,
                  const Communicator& axis, const char* cut) {
  const std::string begin = fmt::format("rank {} has {} of ", axis.rank(), name);
  if (!mine.defined()) throw Mistake(fmt::format("rank {} has no {}", axis.rank(), name));
  if (mine.sizes() != right.sizes()) {
    throw Mistake(fmt::format("{}{}, not {}: it is cut by its {}", begin, mine.sizes().vec(),
                              right.sizes().vec(), cut));
  }
  if (!mine.equal(right)) {
    throw Mistake(
        fmt::format("rank {} has other values in {} than its own part", axis.rank(), name));
  }
  if (mine.storage().nbytes() > mine.nbytes()) {
    throw Mistake(fmt::format(
        "rank {} keeps {} bytes for {}, which has {}: a view keeps the whole weight in memory",
        axis.rank(), mine.storage().nbytes(), name, mine.nbytes()));
  }
}

// `term`: what this rank adds to `right`, the sum.
void check_sum(const std::string& what, const at::Tensor& mine, const at::Tensor& right,
               const at::Tensor& term, const Communicator& axis) {
  if (!mine.defined()) throw Mistake(fmt::format("rank {} has no {}", axis.rank(), what));
  if (mine.sizes() != right.sizes()) {
    throw Mistake(fmt::format("on rank {} {} has sizes {}, not {}", axis.rank(), what,
                              mine.sizes().vec(), right.sizes().vec()));
  }
  if (mine.equal(right)) return;
  const std::string begin = fmt::format("on rank {} {} is ", axis.rank(), what);
  if (mine.equal(term)) {
    throw Mistake(begin + "this rank's term only: the terms of all ranks must be added up");
  }
  if ((mine * axis.size()).allclose(right)) throw Mistake(begin + "the average, not the sum");
  throw Mistake(begin + "not what one process computes");
}

void check_sent(const char* pass, std::int64_t sent, std::int64_t elements, const char* of_what,
                const Communicator& axis) {
  const std::int64_t enough = zero::dist::all_reduce_bytes(elements, 4, axis.rank(), axis.size());
  if (sent == enough) return;
  throw Mistake(fmt::format("in {} rank {} sends {} bytes, and one all-reduce of {} sends {}", pass,
                            axis.rank(), sent, of_what, enough));
}

void check_gradient(const char* name, const at::Tensor& mine, const at::Tensor& right,
                    const Communicator& axis) {
  if (mine.defined() && mine.equal(right)) return;
  throw Mistake(
      fmt::format("on rank {} the gradient of its part of {} is wrong{}", axis.rank(), name,
                  mine.defined() && mine.sizes() == right.sizes()
                      ? ": a rank's weights are its own, so theirs is complete without another rank"
                      : ""));
}

void check_axis(const Answer& answer, Communicator& axis) {
  const Pair whole = whole_pair();
  const Pair part = answer.part_of(whole, axis.rank(), axis.size());
  check_weight("first", part.first, columns_of(whole.first, axis), axis,
               "columns, which make the features");
  check_weight("second", part.second, rows_of(whole.second, axis), axis,
               "rows, which read this rank's features, and the last rank alone has the bias");

  const at::Tensor x = whole_numbers({kTokens, kInputs}, 3);
  const at::Tensor delta = whole_numbers({kTokens, kOutputs}, 4);
  const at::Tensor right_inner = with_ones(x, 1).mm(whole.first).relu();
  const at::Tensor right_output = with_ones(right_inner, 1).mm(whole.second);
  const at::Tensor my_inner = columns_of(right_inner, axis).contiguous();
  const int ones = axis.rank() == axis.size() - 1 ? 1 : 0;
  const auto sent = [&] { return axis.traffic().bytes(); };

  std::int64_t before = sent();
  at::Tensor inner;
  const at::Tensor output = answer.forward(part, x.clone(), inner, axis);
  if (!inner.defined() || !inner.equal(my_inner)) {
    throw Mistake(fmt::format("rank {} does not put its own features into inner", axis.rank()));
  }
  check_sum("the output", output, right_output, with_ones(my_inner, ones).mm(part.second), axis);
  check_sent("forward", sent() - before, output.numel(), "the output", axis);

  before = sent();
  const Gradients gradients = answer.backward(part, x.clone(), inner, delta.clone(), axis);
  const at::Tensor of_inner =
      delta.mm(whole.second.narrow(0, 0, kFeatures).t()) * (right_inner > 0);
  const at::Tensor rows = whole.first.narrow(0, 0, kInputs);
  check_sum("the gradient of x", gradients.x, of_inner.mm(rows.t()),
            columns_of(of_inner, axis).mm(columns_of(rows, axis).t()), axis);
  check_gradient("first", gradients.weights.first,
                 columns_of(with_ones(x, 1).t().mm(of_inner), axis), axis);
  check_gradient("second", gradients.weights.second,
                 rows_of(with_ones(right_inner, 1).t().mm(delta), axis), axis);
  check_sent("backward", sent() - before, x.numel(), "the gradient of x", axis);
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& axis) { check_axis(answer, axis); });
}

}  // namespace exercise_08a
