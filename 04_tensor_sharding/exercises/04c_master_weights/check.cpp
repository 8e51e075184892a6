// Compares with float32 AdamW without shards: state, parameters, bytes held, bytes sent.

#include <fmt/format.h>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "04c.hpp"

namespace exercise_04c {

using zero::dist::Communicator;
using zero::dist::Operation;
using zero::exercise::Mistake;

constexpr std::int64_t kParameters = 1920;  // 1, 2, 3 and 5 divide it
constexpr int kSteps = 20;

// From 1 to 1.5, exact in bfloat16. A step of 0.001 is less than half of the way to a neighbour.
at::Tensor first_values() { return (at::arange(kParameters) % 64 / 128.0 + 1).to(at::kBFloat16); }

// The gradient of rank 0; that of rank r is r + 1 times as large. Sums and averages are exact, and
// an element has the same sign in all steps.
at::Tensor gradient_of_rank_0(int step) {
  at::manual_seed(step);
  const at::Tensor sign = at::arange(kParameters) % 2 * 2 - 1;
  return at::randint(1, 4, {kParameters}) / 64 * sign;
}

std::int64_t bytes_held() {
  const zero::memory::Snapshot now = zero::memory::snapshot();
  return now.total - now[zero::memory::Category::kCommunication];
}

void check_held(std::int64_t held, int rank, int ranks) {
  const std::int64_t right = 12 * kParameters / ranks;
  if (held >= right && held <= right + 64) return;
  std::string rest = ": a master weight and two moments, 4 bytes each";
  if (held >= 12 * kParameters) rest = ": it needs those of its own shard only";
  if (held == 4 * kParameters + 8 * kParameters / ranks) {
    rest = ": the shard is a view, which keeps the whole float32 copy alive";
  }
  throw Mistake(fmt::format("rank {} holds {} bytes of states, where 12P/N are {}{}", rank, held,
                            right, rest));
}

void check_sent(const zero::dist::Traffic& sent, int rank, int ranks) {
  const std::int64_t half = 2 * kParameters * (ranks - 1) / ranks;
  const auto sent_by = [&](Operation operation) {
    std::int64_t bytes = 0;
    for (const auto& entry : sent.entries[static_cast<std::size_t>(operation)])
      bytes += entry.bytes;
    return bytes;
  };
  for (const Operation operation : {Operation::kReduceScatter, Operation::kAllGather}) {
    const std::int64_t bytes = sent_by(operation);
    if (bytes == half) continue;
    throw Mistake(fmt::format("rank {} sends {} bytes by {}, where 2 bytes an element make {}{}",
                              rank, bytes, zero::dist::name(operation), half,
                              bytes == 2 * half ? ": float32 travels" : ""));
  }
  if (sent.bytes() != 2 * half) {
    throw Mistake(
        fmt::format("rank {} sends {} bytes by other collectives", rank, sent.bytes() - 2 * half));
  }
}

void check_values(const State& state, const at::Tensor& parameters, int rank, int ranks) {
  State whole{first_values().to(at::kFloat), at::zeros({kParameters}), at::zeros({kParameters})};
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor average = gradient_of_rank_0(step) * ((ranks + 1) / 2.0);
    adamw(whole.master, average, whole.mean, whole.square, step);
  }
  const std::int64_t each = kParameters / ranks;
  const auto shard = [&](const at::Tensor& flat) { return flat.narrow(0, rank * each, each); };
  const at::Tensor mean = shard(whole.mean);
  if (state.mean.numel() != each || state.master.numel() != each) {
    throw Mistake(fmt::format("a shard has {} elements", each));
  }
  if (!state.mean.equal(mean)) {
    if (state.mean.allclose(mean * ranks)) {
      throw Mistake("the first moment is N times too large: that of the sum, not of the average");
    }
    throw Mistake(
        "the first moment is not that of float32: the average gradient must be widened before the "
        "update");
  }
  if (!state.master.equal(shard(whole.master))) {
    throw Mistake("the master weights are not those of AdamW in float32 on this shard");
  }
  const at::Tensor right = whole.master.to(at::kBFloat16);
  if (parameters.equal(right)) return;
  if (shard(parameters).equal(shard(right))) {
    throw Mistake("what other ranks update is out of date: the shards must be gathered");
  }
  throw Mistake("the parameters are not the rounded master weights");
}

void check_run(const Answer& answer, Communicator& communicator) {
  const int rank = communicator.rank(), ranks = communicator.size();
  const at::Tensor first = first_values();
  at::Tensor parameters = first.clone();
  const std::int64_t held_before = bytes_held();
  State state = answer.make_state(communicator, parameters);
  zero::dist::Traffic before;
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor gradient = (gradient_of_rank_0(step) * (rank + 1)).to(at::kBFloat16);
    before = communicator.traffic();
    answer.step(communicator, state, parameters, gradient);
  }
  const std::int64_t held = bytes_held() - held_before;
  for (const at::Tensor& tensor : {state.master, state.mean, state.square}) {
    if (!tensor.defined()) throw Mistake("there are no master weights, or no moments");
    if (tensor.scalar_type() == at::kFloat) continue;
    throw Mistake(
        "master weights and moments must be float32: bfloat16 has 8 bits of precision, and an "
        "update of 0.001 is rounded away");
  }
  if (parameters.equal(first)) {
    throw Mistake(
        "20 updates of 0.001 have changed no parameter, and should add up: a master weight made "
        "anew of the rounded parameter has forgotten them");
  }
  check_held(held, rank, ranks);
  const zero::dist::Traffic sent = communicator.traffic().since(before);
  check_values(state, parameters, rank, ranks);
  check_sent(sent, rank, ranks);
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks(
      [&](Communicator& communicator) { check_run(answer, communicator); });
}

}  // namespace exercise_04c
