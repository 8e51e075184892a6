// Compares the numbers with the formulas, and these with the allocator's count for the classes.

#include <fmt/format.h>

#include <cmath>

#include <00_simple_ddp/simple_ddp.hpp>
#include <01_zero1/zero1_sharding.hpp>
#include <02_zero2/zero2_sharding.hpp>
#include <03_zero3/zero3_sharding.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace exercise_03e {

using zero::exercise::Numbers;

// Bytes of a rank for each parameter: `whole` on every rank, `divided` among N.
struct Stage {
  double whole, divided;
  double on(int ranks) const { return whole + divided / ranks; }
};
constexpr Stage kDdp{16, 0}, kZero1{4, 12}, kZero2{2, 14}, kZero3{0, 16};
constexpr double kBillions = 13;

// Model states that this rank holds after a step, by the allocator. The other ranks are not there.
template <typename Strategy>
std::int64_t held_by(int rank, int ranks) {
  const std::int64_t before = zero::memory::snapshot().model_states();
  const auto model = zero::nn::defer([] {
    return std::make_shared<zero::tools::Mlp>(zero::tools::MlpConfig{
        .inputs = 24, .hidden = {40, 16}, .outputs = 8, .dtype = at::kBFloat16});
  });
  zero::nn::SeededValues values(1);
  zero::dist::Communicator communicator = zero::dist::connect_fake(rank, ranks);
  Strategy strategy(
      {*model, communicator, zero::optim::with_master_weights(zero::optim::adamw()), &values});
  strategy.backward(strategy.forward([&] {
    return model->loss(at::ones({2, 24}), at::ones({2, 8}), /*terms=*/2);
  }));
  strategy.finish_backward();
  strategy.optimizer_step();
  strategy.sync_parameters();
  return zero::memory::snapshot().model_states() - before;
}

// All ranks together, because they own different amounts.
template <typename Strategy>
void check_class(const Stage& stage, int ranks) {
  constexpr std::int64_t kParameters = 25 * 40 + 41 * 16 + 17 * 8;
  std::int64_t held = 0;
  for (int rank = 0; rank < ranks; ++rank) held += held_by<Strategy>(rank, ranks);
  if (static_cast<double>(held) != stage.on(ranks) * ranks * kParameters) {
    throw zero::exercise::Mistake("the allocator does not agree with the formula");
  }
}

void expect_fits(const Numbers& numbers, const std::string& name, double gb) {
  for (const int memory : {80, 24}) {
    const bool fits = gb <= memory;
    numbers.expect(fmt::format("{}_fits_{}", name, memory), fits ? 1 : 0,
                   {{fits ? 0 : 1, "is not right: compare your GB with the memory"}});
  }
}

void expect_ranks(const Numbers& numbers, const std::string& key, const Stage& stage, int memory) {
  if (kBillions * stage.whole > memory) {
    const std::string sentence = "is not right: no number of ranks is enough, the floor is higher";
    const double given = numbers.at(key);
    numbers.expect(key, 0, {{given, sentence}});
    return;
  }
  const double ranks = kBillions * stage.divided / (memory - kBillions * stage.whole);
  numbers.expect(key, std::ceil(ranks),
                 {{std::floor(ranks), "is not right: on so few ranks the states do not fit"},
                  {0, "is not right: the floor is below the memory"}});
}

void check(const Numbers& numbers) {
  const std::string all = "divides everything: what stays whole on every rank?";
  numbers.expect("zero1_floor", kZero1.whole,
                 {{2, "counts the parameters only: under ZeRO-1 gradients stay whole too"},
                  {16, "is DDP's: optimizer states are divided"},
                  {0, all}});
  numbers.expect("zero2_floor", kZero2.whole,
                 {{4, "is ZeRO-1's: under ZeRO-2 gradients are divided too"}, {0, all}});
  numbers.expect("zero3_floor", kZero3.whole,
                 {{2, "is ZeRO-2's: under ZeRO-3 parameters are divided too"}});

  numbers.expect("ddp_gb", kBillions * kDdp.on(1),
                 {{kBillions * 2, "counts the parameters only"},
                  {kBillions * 4, "leaves out the optimizer states"},
                  {kBillions * 12, "leaves out the float32 weights, or parameters and gradients"},
                  {kBillions * 16e9 / (1 << 30), "is in GiB: GB are 10^9 bytes"}},
                 1e-3);
  expect_fits(numbers, "ddp", kBillions * kDdp.on(1));
  numbers.expect("zero2_gb_8", kBillions * kZero2.on(8),
                 {{kBillions * kZero3.on(8), "divides the parameters too: that is ZeRO-3"},
                  {kBillions * kZero1.on(8), "is ZeRO-1's: the gradients are divided too"},
                  {kBillions * kZero2.divided / 8, "leaves out what every rank keeps whole"}},
                 1e-3);
  expect_fits(numbers, "zero2", kBillions * kZero2.on(8));
  numbers.expect("zero3_gb_32", kBillions * kZero3.on(32),
                 {{kBillions * kZero2.on(32), "is ZeRO-2's: the parameters are divided too"},
                  {kBillions * kZero3.on(8), "is for 8 ranks"}},
                 1e-3);
  expect_fits(numbers, "zero3", kBillions * kZero3.on(32));
  expect_ranks(numbers, "zero1_ranks_80", kZero1, 80);
  expect_ranks(numbers, "zero2_ranks_24", kZero2, 24);
  expect_ranks(numbers, "zero3_ranks_24", kZero3, 24);

  zero::exercise::on_ranks(1, [](zero::dist::Communicator&) {
    check_class<zero::SimpleDdp>(kDdp, 1);
    check_class<zero::Zero1Sharding>(kZero1, 8);
    check_class<zero::Zero2Sharding>(kZero2, 8);
    check_class<zero::Zero3Sharding>(kZero3, 32);
  });
}

}  // namespace exercise_03e
