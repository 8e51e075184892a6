// Compares the numbers with the formula, and the formula with the counters of both classes.

#include <fmt/format.h>

#include <00_simple_ddp/simple_ddp.hpp>
#include <02_zero2/zero2_sharding.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/owners.hpp>

namespace exercise_02c {

using zero::dist::Communicator;
using zero::exercise::Numbers;

// Bytes of the weight and the bias of each layer, and of all.
const std::vector<std::int64_t> kBytes = {884, 68, 748, 44, 132, 12};
constexpr std::int64_t kAll = 1888;

// What a rank sends that owns `owned` bytes: gradients to their owners, its parameters to all.
std::int64_t sent_by_owner(std::int64_t owned, int ranks) {
  return kAll - owned + (ranks - 1) * owned;
}

std::vector<std::int64_t> owned_bytes(int ranks) {
  const auto owners = zero::train::assign_owners(kBytes, ranks);
  std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += kBytes[i];
  }
  return owned;
}

// Takes one step; returns the bytes of gradients and parameters that this rank sends in it.
template <typename Strategy>
std::int64_t sent_in_a_step(Communicator& communicator) {
  zero::tools::Mlp model(zero::tools::MlpConfig{.inputs = 13, .hidden = {17, 11}, .outputs = 3});
  Strategy strategy({model, communicator, zero::optim::adamw()});
  const zero::dist::Traffic before = communicator.traffic();
  strategy.backward(strategy.forward([&] {
    return model.loss(at::ones({2, 13}), at::ones({2, 3}), /*terms=*/2);
  }));
  strategy.finish_backward();
  strategy.optimizer_step();
  strategy.sync_parameters();
  const zero::dist::Traffic sent = communicator.traffic().since(before);
  return sent.bytes(zero::dist::Purpose::kGradient) + sent.bytes(zero::dist::Purpose::kParameter);
}

void check_counters(int ranks) {
  const std::vector<std::int64_t> owned = owned_bytes(ranks);
  zero::exercise::on_ranks(ranks, [&](Communicator& communicator) {
    const auto sent = static_cast<double>(sent_in_a_step<zero::SimpleDdp>(communicator));
    double together = 0;
    for (const double each : all_gather_scalars(communicator, {sent})) together += each;
    const std::int64_t mine = owned[static_cast<std::size_t>(communicator.rank())];
    if (together != 2.0 * (ranks - 1) * kAll ||
        sent_in_a_step<zero::Zero2Sharding>(communicator) != sent_by_owner(mine, ranks)) {
      throw zero::exercise::Mistake("the counters do not agree with the formula");
    }
  });
}

void check(const Numbers& numbers) {
  for (const int ranks : {2, 4, 7}) {
    const std::int64_t once = (ranks - 1) * kAll;  // every gradient, or every parameter
    const double mean = 2.0 * static_cast<double>(once) / ranks;
    const std::string ddp = fmt::format("ddp_{}", ranks);
    numbers.expect(ddp, 2 * once,
                   {{mean, "is what one rank sends on average, not all together"},
                    {once, "is one half of the all-reduce: the averages must come back too"},
                    {2 * ranks * kAll, "counts what a rank keeps for itself as sent"}});
    const std::string zero2 = fmt::format("zero2_{}", ranks);
    numbers.expect(
        zero2, 2 * once,
        {{mean, "is what one rank sends on average, not all together"},
         {once, "counts the gradients only: the owners broadcast their parameters"},
         {3 * once, "counts an all-reduce of the gradients: only the owner needs the average"}});

    std::vector<std::int64_t> owned = owned_bytes(ranks);
    std::sort(owned.begin(), owned.end());
    const std::int64_t least = owned.front(), most = owned.back();
    const std::int64_t least_owner = *std::upper_bound(owned.begin(), owned.end(), 0);
    const auto is_mean = std::pair(mean, "is the mean over ranks, and they own different amounts");
    numbers.expect(
        fmt::format("zero2_most_{}", ranks), sent_by_owner(most, ranks),
        {{(ranks - 1) * most, "counts the parameters only, not its gradients"}, is_mean});
    numbers.expect(fmt::format("zero2_least_{}", ranks), sent_by_owner(least, ranks),
                   {{0, "is not right: a rank that owns nothing sends its gradients all the same"},
                    {(ranks - 1) * least, "counts the parameters only, not its gradients"},
                    {sent_by_owner(least_owner, ranks), "forgets the rank that owns nothing"},
                    {kAll - least, "counts the gradients only, not its parameters"},
                    is_mean});
  }
  for (const int ranks : {2, 4, 7}) check_counters(ranks);
}

}  // namespace exercise_02c
