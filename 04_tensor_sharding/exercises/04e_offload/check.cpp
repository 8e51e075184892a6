// Compares the numbers with the formula, and the formula with what the classes hold and update.

#include <fmt/format.h>

#include <cmath>

#include <00_simple_ddp/simple_ddp.hpp>
#include <04_tensor_sharding/tensor_zero1.hpp>
#include <04_tensor_sharding/tensor_zero2.hpp>
#include <04_tensor_sharding/tensor_zero3.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace exercise_04e {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using zero::exercise::Numbers;
using zero::memory::Category;

constexpr double kParameters = 1.5e9;
constexpr int kRanks = 8;
constexpr double kGb = 1e9;
constexpr double kRounding = 5e-3;  // two decimals are enough

// What a stage divides by N.
struct Stage {
  std::string name;
  bool optimizer, gradients, parameters;
};
const std::vector<Stage> kStages = {{"ddp", false, false, false},
                                    {"zero1", true, false, false},
                                    {"zero2", true, true, false},
                                    {"zero3", true, true, true}};

// Bytes of one parameter, or of all that a rank has.
struct Bytes {
  double parameters = 2, gradients = 2, optimizer = 12;
  double on_device_with_offload() const { return parameters + gradients; }
  double total() const { return parameters + gradients + optimizer; }
};

Bytes held(const Stage& stage, double parameters, const Bytes& each = {}) {
  const auto share = [&](bool divided) { return parameters / (divided ? kRanks : 1); };
  return {each.parameters * share(stage.parameters), each.gradients * share(stage.gradients),
          each.optimizer * share(stage.optimizer)};
}

// What crosses the bus with offload: a gradient and a parameter for each that the rank updates.
double on_bus(const Stage& stage, double parameters) {
  return 4 * parameters / (stage.optimizer ? kRanks : 1);
}

// The fewest ranks with which `bytes`, divided by their number, are less than 1 GB.
int fewest_ranks(double bytes) {
  int ranks = 1;
  while (bytes / ranks >= kGb) ++ranks;
  return ranks;
}

void check_table(const Numbers& numbers) {
  const auto gb = [](double bytes) { return bytes / kGb; };
  for (const Stage& stage : kStages) {
    const double right = held(stage, kParameters).total();
    numbers.expect(
        stage.name, gb(right),
        {{right / (1 << 30), "is in GiB, of 2^30 bytes"},
         {gb(held(stage, kParameters, {4, 4, 8}).total()),
          "counts 4 bytes for a parameter and 4 for its gradient: in bfloat16 each has 2"},
         {gb(held(stage, kParameters, {2, 2, 8}).total()),
          "leaves out the master weights, 4 bytes of the optimizer's 12"},
         {gb(16 * kParameters / kRanks), "divides everything by N, as ZeRO-3 alone does"}},
        kRounding);
  }
  for (const Stage& stage : kStages) {
    const Bytes bytes = held(stage, kParameters);
    const double right = bytes.on_device_with_offload();
    numbers.expect(stage.name + "_offload", gb(right),
                   {{gb(bytes.total()), "is the number without offload"},
                    {gb(bytes.optimizer), "is what has left the device"},
                    {right / (1 << 30), "is in GiB, of 2^30 bytes"},
                    {gb(right + bytes.optimizer / 3),
                     "keeps the master weights on the device: the CPU updates them"}},
                   kRounding);
  }
}

void check_fewest(const Numbers& numbers) {
  const std::string exactly = "has exactly 1 GB, and less is asked";
  numbers.expect("fewest", fewest_ranks(16 * kParameters),
                 {{16 * kParameters / kGb, exactly}, {23, "has less than 1 GiB, not 1 GB"}});
  numbers.expect("fewest_offload", fewest_ranks(4 * kParameters),
                 {{4 * kParameters / kGb, exactly},
                  {fewest_ranks(16 * kParameters), "is the number without offload"}});
}

void check_bus(const Numbers& numbers) {
  for (const Stage& stage : kStages) {
    if (stage.name == "zero2") continue;
    const double right = on_bus(stage, kParameters) / kGb;
    const double share = kParameters / (stage.optimizer ? kRanks : 1) / kGb;
    const std::string states = "moves the optimizer's states: they stay in the host's memory";
    numbers.expect(
        "bus_" + stage.name, right,
        {{right / 2, "counts one direction: gradients there, parameters back"},
         {12 * share, states},
         {24 * share, states},
         {8 * share, "counts float32: in both directions an element has 2 bytes"},
         {4 * kParameters / kGb, "counts all P, and a rank updates P/N of them"},
         {2 * kParameters / kGb + 2 * share,
          "has one direction whole: a rank sends the gradients and gets the parameters of its "
          "shard alone"}},
        kRounding);
  }
  const double right = on_bus(kStages.back(), kParameters) / 25e9;  // seconds
  numbers.expect("bus_ms", 1000 * right,
                 {{500 * right, "counts one direction"},
                  {right, "is in seconds"},
                  {1000 * on_bus(kStages.front(), kParameters) / 25e9, "is that of DDP"}},
                 kRounding);
}

// Takes a step of a small model, whose tensors have no padding on 8 ranks, and compares.
template <typename Strategy>
void check_measured(Communicator& communicator, const Stage& stage) {
  const zero::memory::Snapshot before = zero::memory::snapshot();
  zero::tools::Mlp model(zero::tools::MlpConfig{
      .inputs = 512, .hidden = {512}, .outputs = 512, .dtype = at::kBFloat16});
  Strategy strategy({model, communicator, zero::optim::with_master_weights(zero::optim::adamw())});
  strategy.backward(strategy.forward([&] {
    return model.loss(at::ones({1, 512}), at::ones({1, 512}), /*terms=*/1);
  }));
  strategy.finish_backward();
  strategy.optimizer_step();
  strategy.sync_parameters();
  const zero::memory::Snapshot now = zero::memory::snapshot();

  std::int64_t updated = 0;  // bytes of the gradients that the update reads, and as many to write
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor piece = strategy.placement(i).updated.tensor;
    if (piece.defined()) updated += 2 * static_cast<std::int64_t>(piece.grad().nbytes());
  }
  const auto parameters = static_cast<double>(strategy.list().numel());
  const Bytes right = held(stage, parameters);
  const auto expect = [&](const char* what, std::int64_t bytes, double formula) {
    if (std::abs(static_cast<double>(bytes) - formula) <= 1e-3 * formula) return;
    throw Mistake(fmt::format("{}: {} of {} bytes do not agree with the formula, {}", stage.name,
                              what, bytes, formula));
  };
  const auto more = [&](Category category) { return now[category] - before[category]; };
  expect("parameters", more(Category::kParameters), right.parameters);
  expect("gradients", more(Category::kGradients), right.gradients);
  expect("optimizer states", more(Category::kOptimizer), right.optimizer);
  expect("updates", updated, on_bus(stage, parameters));
}

void check(const Numbers& numbers) {
  check_table(numbers);
  check_fewest(numbers);
  check_bus(numbers);
  zero::exercise::on_ranks(kRanks, [](Communicator& communicator) {
    check_measured<zero::SimpleDdp>(communicator, kStages[0]);
    check_measured<zero::TensorZero1>(communicator, kStages[1]);
    check_measured<zero::TensorZero2>(communicator, kStages[2]);
    check_measured<zero::TensorZero3>(communicator, kStages[3]);
  });
}

}  // namespace exercise_04e
