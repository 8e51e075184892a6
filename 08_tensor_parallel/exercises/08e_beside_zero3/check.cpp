// Compares the numbers with the formulas, and these with the planner's and with the counters of a
// small network.

#include <fmt/format.h>

#include <cmath>

#include <grading/check.hpp>
#include <tools/plan/planner.hpp>

namespace exercise_08e {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr double kRanks = 8, kShare = (kRanks - 1) / kRanks, kElement = 2;  // bytes
constexpr double kTokens = 8192, kHidden = 4096, kWide = 65536, kGb = 1e9;

// What a rank sends under ZeRO-3 for `parameters`.
double zero3(double parameters) { return 3 * parameters * kElement * kShare; }
// What a rank sends in an all-reduce of [tokens, columns].
double all_reduce(double tokens, double columns) {
  return 2 * tokens * columns * kElement * kShare;
}

// The smallest number of tokens with which ZeRO-3 sends less than `all_reduces` of [tokens,
// hidden].
double even(double parameters, int all_reduces) {
  return std::floor(zero3(parameters) / (all_reduces * all_reduce(1, kHidden))) + 1;
}

// Forward of relu(x A) B, cut along one axis, must be what one process computes.
void check_network(Communicator& communicator, bool cuts_wide_axis) {
  constexpr std::int64_t kT = 6, kH = 8, kF = 40;
  const int ranks = communicator.size();
  at::manual_seed(0);
  const at::Tensor x = at::randn({kT, kH}), a = at::randn({kH, kF}), b = at::randn({kF, kH});
  const at::Tensor right = x.mm(a).relu().mm(b);
  const auto mine = [&](const at::Tensor& tensor, int axis) {
    return tensor.chunk(ranks, axis)[communicator.rank()].contiguous();
  };
  const auto summed = [&](at::Tensor partial) {
    communicator.all_reduce(partial, zero::dist::Purpose::kControl, zero::dist::ReduceOp::kSum)
        .wait();
    return partial;
  };
  const std::int64_t before = communicator.traffic().bytes();
  const bool same = cuts_wide_axis
                        ? summed(x.mm(mine(a, 1)).relu().mm(mine(b, 0))).allclose(right, 1e-3, 1e-3)
                        : summed(mine(x, 1).mm(mine(a, 0)))
                              .relu()
                              .mm(mine(b, 1))
                              .allclose(mine(right, 1), 1e-3, 1e-3);
  const std::int64_t sent = communicator.traffic().bytes() - before;
  if (!same || sent != 2 * kT * (cuts_wide_axis ? kH : kF) * 4 * (ranks - 1) / ranks) {
    throw Mistake("the small network does not agree with the formula");
  }
}

void check_planner() {
  namespace plan = zero::plan;
  const auto hidden = static_cast<std::int64_t>(kHidden);
  const std::int64_t layer = 12 * hidden * hidden;
  const double sent =
      plan::sent(plan::Scheme::kZero3, plan::copies(layer, plan::mixed()), 8).total();
  const auto differs = [](double a, double b) { return std::abs(a - b) > 1e-9 * b; };
  if (differs(sent, zero3(12 * kHidden * kHidden)) ||
      differs(plan::tensor_parallel_sent(8192, hidden, 2, 8), 4 * all_reduce(kTokens, kHidden)) ||
      differs(static_cast<double>(plan::tensor_parallel_crossover(layer, hidden, plan::mixed())),
              even(12 * kHidden * kHidden, 4))) {
    throw Mistake("the planner does not agree with the formula");
  }
}

void check(const zero::exercise::Numbers& numbers) {
  constexpr double kNear = 0.01;
  const double layer = 12 * kHidden * kHidden;
  const double zero3_gb = zero3(layer) / kGb, tensor_gb = 4 * all_reduce(kTokens, kHidden) / kGb;
  numbers.expect("zero3_gb", zero3_gb,
                 {{zero3_gb * 2 / 3, "counts one gather: backward gathers the layer again"},
                  {zero3_gb / kShare, "counts what a rank keeps for itself as sent"},
                  {zero3_gb * 2, "is for numbers of 4 bytes"}},
                 kNear);
  numbers.expect("tensor_gb", tensor_gb,
                 {{tensor_gb / 2, "is for two all-reduces, or for halves of four"},
                  {tensor_gb / 4, "is for one all-reduce"},
                  {tensor_gb / kShare, "counts what a rank keeps for itself as sent"},
                  {tensor_gb / kRanks, "divides the tokens: every rank works on all of them"}},
                 kNear);
  numbers.expect("even", even(layer, 4),
                 {{std::floor(even(layer, 4) / kRanks) + 1,
                   "is the tokens of one rank: all ranks work on the same ones"},
                  {even(layer, 4) - 1, "is where both send the same: ZeRO-3 is to send less"},
                  {even(layer, 2), "counts two all-reduces: backward has two as well"}});

  const double wide_gb = all_reduce(kTokens, kHidden) / kGb;
  const double narrow_gb = all_reduce(kTokens, kWide) / kGb;
  const std::string other = "is the other way round: the sum has the columns that are not cut";
  numbers.expect("wide_gb", wide_gb,
                 {{narrow_gb, other}, {wide_gb / 2, "is one half of the all-reduce"}}, kNear);
  numbers.expect("narrow_gb", narrow_gb,
                 {{wide_gb, other}, {narrow_gb / 2, "is one half of the all-reduce"}}, kNear);
  numbers.expect(
      "axis", kWide,
      {{kHidden, "sends more: the sum over ranks is then of [8192, 65536], before relu"}});
  const double network = 2 * kHidden * kWide;
  numbers.expect("even_wide", even(network, 2),
                 {{even(network, 4), "counts four all-reduces: two of a layer's are attention's"},
                  {even(network, 1), "counts forward only: backward has an all-reduce as well"},
                  {even(network, 2) - 1, "is where both send the same: ZeRO-3 is to send less"}});
  check_planner();
  for (const int ranks : {2, 4}) {
    zero::exercise::on_ranks(ranks, [](Communicator& communicator) {
      for (const bool wide : {true, false}) check_network(communicator, wide);
    });
  }
}

}  // namespace exercise_08e
