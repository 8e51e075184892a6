// Compares with the gradient over all samples, and with what wrong weights make of it.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "00d.hpp"

namespace exercise_00d {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr std::int64_t kInputs = 50;

// Samples of each micro-batch of a rank: first all the same, then different ones, and rank 2 has
// none.
std::vector<std::int64_t> samples_of(int rank, bool even) {
  if (even) return {4, 4};
  if (rank == 2) return {};
  return rank == 0 ? std::vector<std::int64_t>{6, 1} : std::vector<std::int64_t>{3, 5, 2};
}

std::vector<MicroBatch> batches_of(int rank, bool even) {
  at::manual_seed(rank);
  std::vector<MicroBatch> batches;
  for (const std::int64_t samples : samples_of(rank, even)) {
    batches.push_back({at::randn({samples, kInputs}), at::randn({samples})});
  }
  return batches;
}

// Gradients as sums over the samples of the micro-batches of all ranks, with different divisors.
struct Sums {
  at::Tensor over_samples = at::zeros({kInputs});
  at::Tensor of_micro_batch_means = at::zeros({kInputs});
  at::Tensor of_rank_means = at::zeros({kInputs});
  double samples = 0, micro_batches = 0;
};

Sums sums_over(const at::Tensor& weight, int ranks, bool even) {
  Sums all;
  for (int rank = 0; rank < ranks; ++rank) {
    at::Tensor sum = at::zeros({kInputs});
    double samples = 0;
    for (const MicroBatch& batch : batches_of(rank, even)) {
      const at::Tensor mean = gradient_of_mean(weight, batch);
      const auto count = static_cast<double>(batch.samples());
      sum += mean * count;
      samples += count;
      all.of_micro_batch_means += mean;
      all.micro_batches += 1;
    }
    all.over_samples += sum;
    all.of_rank_means += sum / std::max(samples, 1.0);
    all.samples += samples;
  }
  return all;
}

bool is_about(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() <= 1e-5 * b.norm().item<double>();
}

std::string explain(const at::Tensor& gradient, const Sums& sums, int ranks) {
  const std::string begin = "this is not the mean over all samples: ";
  if (is_about(gradient, sums.of_micro_batch_means / sums.micro_batches)) {
    return begin + "every micro-batch counts the same, and they have different numbers of samples";
  }
  if (is_about(gradient, sums.of_rank_means / ranks)) {
    return begin + "every rank counts the same, and they have different numbers of samples";
  }
  if (is_about(gradient, sums.over_samples))
    return "this is the sum over all samples, not their mean";
  const double ratio =
      gradient.norm().item<double>() / (sums.over_samples / sums.samples).norm().item<double>();
  return begin + fmt::format("it is {:.3f} times as long", ratio);
}

void check_step(const Answer& answer, Communicator& communicator, bool even) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  at::manual_seed(100);
  const at::Tensor weight = at::randn({kInputs});
  const std::vector<MicroBatch> mine = batches_of(rank, even);
  const Sums sums = sums_over(weight, ranks, even);

  const std::int64_t before = communicator.traffic().bytes();
  const at::Tensor gradient = answer.accumulated_gradient(communicator, weight, mine);
  const std::int64_t sent = communicator.traffic().bytes() - before;
  if (!gradient.defined() || gradient.sizes() != weight.sizes()) {
    throw Mistake("the gradient has not the shape of the weight");
  }
  const auto norms = all_gather_scalars(communicator, {gradient.norm().item<double>()});
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  if (*most > *least * (1 + 1e-5)) {
    throw Mistake("the ranks have different gradients: all must return the same");
  }
  if (!is_about(gradient, sums.over_samples / sums.samples)) {
    throw Mistake(explain(gradient, sums, ranks));
  }
  const std::int64_t once = zero::dist::all_reduce_bytes(kInputs, 4, rank, ranks);
  if (sent > once + 16 * (ranks - 1)) {
    throw Mistake(fmt::format(
        "rank {} sends {} bytes for {} micro-batches, and one all-reduce of the gradient is {}: "
        "reduce once, after the last",
        rank, sent, mine.size(), once));
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    for (const bool even : {true, false}) check_step(answer, communicator, even);
  });
}

}  // namespace exercise_00d
