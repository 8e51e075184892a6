#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "zero2_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;

train::StrategyArguments arguments(Toy& toy, dist::Communicator& communicator,
                                   const std::string& variant) {
  return {*toy.model, communicator, optim::adamw(), &toy.values, variant};
}

std::int64_t owned_bytes(const train::Strategy& strategy) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (strategy.owns(i)) sum += strategy.list().parameters[i].bytes();
  }
  return sum;
}

TEST(Zero2, HoldsGradientsOfItsOwnParametersOnly) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"during", "after", "placeholder"}) {
        const memory::Snapshot before = memory::snapshot();
        Toy toy;
        Zero2Sharding zero2(arguments(toy, communicator, variant));
        train::Trainer(zero2).step({toy.batch(communicator.rank(), 0)});
        const memory::Snapshot held = memory::snapshot();
        const std::int64_t owned = owned_bytes(zero2);
        EXPECT_EQ(held[Category::kParameters] - before[Category::kParameters],
                  zero2.list().bytes());
        EXPECT_EQ(held[Category::kGradients] - before[Category::kGradients], owned) << variant;
        EXPECT_EQ(held[Category::kOptimizer] - before[Category::kOptimizer], 2 * owned);
        for (std::size_t i = 0; i < zero2.list().size(); ++i) {
          EXPECT_EQ(zero2.list().parameters[i].tensor.grad().defined(), zero2.owns(i)) << i;
        }
      }
    });
  }
}

// The point of reducing during backward: never all gradients at once.
TEST(Zero2, PeakOfGradientsFallsOnlyWhenReducedDuringBackward) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const auto peak = [&](const char* variant) {
      Toy toy;
      Zero2Sharding zero2(arguments(toy, communicator, variant));
      memory::reset_peaks();
      const std::int64_t before = memory::snapshot()[Category::kGradients];
      zero2.backward(zero2.forward(toy.batch(communicator.rank(), 0)));
      zero2.finish_backward();
      return memory::snapshot().peak_of(Category::kGradients) - before;
    };
    Toy toy;
    std::int64_t all = 0;
    std::int64_t largest = 0;
    for (const nn::Parameter& p : nn::list_parameters(*toy.model).parameters) {
      all += p.bytes();
      largest = std::max(largest, p.bytes());
    }
    Zero2Sharding for_owned(arguments(toy, communicator, "during"));
    EXPECT_EQ(peak("after"), all);
    // A gradient is recharged when it is ready, and bias and weight of a layer can be there
    // together.
    EXPECT_LE(peak("during"), owned_bytes(for_owned) + 2 * largest);
    EXPECT_LT(peak("during"), all);
  });
}

TEST(Zero2, SendsWhatTheFormulaSays) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"during", "after", "placeholder"}) {
        Toy toy;
        Zero2Sharding zero2(arguments(toy, communicator, variant));
        train::Trainer trainer(zero2);
        const dist::Traffic before = communicator.traffic();
        trainer.step({toy.batch(communicator.rank(), 0)});
        const dist::Traffic sent = communicator.traffic().since(before);
        EXPECT_EQ(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter),
                  zero2.predicted_traffic())
            << variant;
      }
    });
  }
}

}  // namespace
}  // namespace zero
