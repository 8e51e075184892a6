// Measures steps whose bytes are known, then both steps of ZeRO-1 with the answer's measure().

#include <fmt/format.h>

#include <cmath>

#include <grading/check.hpp>

#include "01d.hpp"

namespace exercise_01d {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::Mistake;

constexpr std::int64_t kFloats = 60'000;  // a multiple of every N
constexpr double kSlow = 0.1, kLate = 2;  // seconds

double seconds_at_1_gbit(double bytes) { return 8 * bytes / 1e9; }

bool is_about(double a, double b) { return std::abs(a - b) <= 1e-6 * b; }

std::int64_t calls(const Communicator& communicator) {
  std::int64_t sum = 0;
  for (const Purpose purpose :
       {Purpose::kGradient, Purpose::kParameter, Purpose::kControl, Purpose::kSetup}) {
    sum += communicator.traffic().calls(purpose);
  }
  return sum;
}

// Throws the mistake in the seconds on the wire. `own`: what this rank has sent since the step
// began.
void check_wire(double wire, double own, const Communicator& communicator) {
  const int last = communicator.size() - 1;
  const double sent = 4.0 * last * kFloats;
  const double right = seconds_at_1_gbit(sent);
  if (is_about(wire, right)) return;
  const std::string begin =
      fmt::format("rank {} says {:.4g} s on the wire, ", communicator.rank(), wire);
  if (is_about(wire, right / 8)) {
    throw Mistake(begin + "which is an eighth of what the link needs: a byte has 8 bits");
  }
  if (wire >= seconds_at_1_gbit(2 * sent)) {
    throw Mistake(begin + "which counts what was sent before the step too");
  }
  if (wire > right && wire <= seconds_at_1_gbit(sent + own)) {
    throw Mistake(begin + "which counts what is sent after the step too");
  }
  if (is_about(wire, right / communicator.size())) {
    throw Mistake(begin + "the mean of the ranks: a step is over when its slowest rank is");
  }
  throw Mistake(begin + fmt::format("and rank {}, which sends most, needs {:.4g}", last, right));
}

// The same for the seconds by the clock.
void check_clock(double clock, const Communicator& communicator) {
  if (is_about(clock, kSlow)) return;
  const std::string begin =
      fmt::format("rank {} says {:.4f} s by the clock, ", communicator.rank(), clock);
  if (is_about(clock, kSlow / communicator.size())) {
    throw Mistake(begin + "the mean of the ranks: a step is over when its slowest rank is");
  }
  if (is_about(clock, kSlow + kLate)) {
    throw Mistake(begin + fmt::format("and the step takes {}: the clock also counts how long the "
                                      "ranks wait for one that comes late",
                                      kSlow));
  }
  throw Mistake(begin + fmt::format("and the slowest rank needs {}", kSlow));
}

// One step: the last rank sends a tensor to all; then rank 0 works a little longer. Of two ranks
// the last comes late: no collective of the first ends before that, and its clock shows it.
void check_measure(const Answer& answer, Communicator& communicator) {
  const int ranks = communicator.size();
  const int last = ranks - 1;
  at::Tensor tensor = at::ones({kFloats});
  const auto send = [&] { communicator.broadcast(tensor, last, Purpose::kParameter).wait(); };
  send();  // before the step, so not part of it
  const bool comes_late = ranks == 2 && communicator.rank() == last;
  const std::int64_t before = communicator.traffic().bytes(), calls_before = calls(communicator);
  double worked = 0;
  const Clock now = [&] {
    const bool has_met = comes_late || calls(communicator) > calls_before;
    return worked + (ranks == 2 && has_met ? kLate : 0);
  };
  const Cost cost = answer.measure(communicator, now, [&] {
    send();
    if (communicator.rank() == 0) worked += kSlow;
  });
  const auto own = static_cast<double>(communicator.traffic().bytes() - before);

  check_wire(cost.wire, own, communicator);
  check_clock(cost.clock, communicator);
}

Model model_of(int rank) {
  return {at::arange(kFloats, at::kFloat) / kFloats,
          at::arange(kFloats, at::kFloat).remainder(7) + rank};
}

void check_zero1(const Answer& answer, Communicator& communicator) {
  const int ranks = communicator.size();
  const double piece = 4.0 * (ranks - 1) / ranks * kFloats;  // of one half of an all-reduce
  const Clock stopped = [] { return 0.0; };                  // the wire alone matters here
  Model naive = model_of(communicator.rank());
  const Cost of_naive =
      answer.measure(communicator, stopped, [&] { naive_step(communicator, naive); });
  const double right = seconds_at_1_gbit(3 * piece);
  if (!is_about(of_naive.wire, right)) {
    throw Mistake(fmt::format("measure() says {:.4g} s on the wire for naive_step(), {}",
                              of_naive.wire,
                              is_about(of_naive.wire, ranks * right)
                                  ? "which adds up all ranks, and their links work at the same time"
                                  : fmt::format("and 3 (N-1)/N V need {:.4g}", right)));
  }
  Model model = model_of(communicator.rank());
  const Cost of_zero1 =
      answer.measure(communicator, stopped, [&] { answer.zero1_step(communicator, model); });
  if (!at::allclose(model.parameters, naive.parameters, 1e-6, 1e-6)) {
    const bool own_right = at::allclose(own_piece(model.parameters, communicator),
                                        own_piece(naive.parameters, communicator), 1e-6, 1e-6);
    throw Mistake(
        own_right ? "after zero1_step() the parameters of the others are those of before the step"
                  : "zero1_step() leaves other parameters than naive_step() in this rank's piece");
  }
  if (is_about(of_zero1.wire, seconds_at_1_gbit(2 * piece))) return;
  throw Mistake(
      is_about(of_zero1.wire, of_naive.wire)
          ? "zero1_step() takes as long as the naive step: every rank still gets the whole average"
          : fmt::format("zero1_step() takes {:.4g} s on the wire, and 2 (N-1)/N V take {:.4g}",
                        of_zero1.wire, seconds_at_1_gbit(2 * piece)));
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    check_measure(answer, communicator);
    check_zero1(answer, communicator);
  });
  const double half = seconds_at_1_gbit(4.0 * kFloats * 4 / 5);
  fmt::print(
      "{} bytes of parameters, 5 ranks, 1 Gbit/s: {:.2f} ms a step naively, {:.2f} ms with a "
      "reduce-scatter\n",
      4 * kFloats, 3000 * half, 2000 * half);
}

}  // namespace exercise_01d
