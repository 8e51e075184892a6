#include <tests/support/ranks.hpp>
#include <tests/support/toy_run.hpp>

#include "zero2_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using Trial = testing::ToyRun<Zero2Sharding>;

TEST(Zero2, HoldsGradientsOfItsOwnParametersOnly) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"during", "after", "placeholder"}) {
        Trial run(communicator, variant);
        run.step(0);
        const nn::ParameterList& list = run.strategy.list();
        const std::int64_t owned = testing::owned_bytes(run.strategy);
        EXPECT_EQ(run.held(Category::kParameters), list.bytes());
        EXPECT_EQ(run.held(Category::kGradients), owned) << variant;
        EXPECT_EQ(run.held(Category::kOptimizer), 2 * owned);
        for (std::size_t i = 0; i < list.size(); ++i) {
          EXPECT_EQ(list.parameters[i].tensor.grad().defined(), run.strategy.owns(i)) << i;
        }
      }
    });
  }
}

// The point of reducing during backward: never all gradients at once.
TEST(Zero2, PeakOfGradientsFallsOnlyWhenReducedDuringBackward) {
  on_ranks(3, [](dist::Communicator& communicator) {
    std::int64_t all = 0, bound = 0;
    const auto peak = [&](const char* variant) {
      Trial run(communicator, variant);
      const nn::ParameterList& list = run.strategy.list();
      all = list.bytes();
      // A gradient is recharged when it is ready, and bias and weight of a layer can be there
      // together.
      bound = testing::owned_bytes(run.strategy) + 2 * testing::largest_parameter(list);
      memory::reset_peaks();
      run.reduce(0);
      return run.peak(Category::kGradients);
    };
    EXPECT_EQ(peak("after"), all);
    const std::int64_t during = peak("during");
    EXPECT_LE(during, bound);
    EXPECT_LT(during, all);
  });
}

}  // namespace
}  // namespace zero
