#include <tests/support/ranks.hpp>
#include <tests/support/toy_run.hpp>

#include "zero1_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using Trial = testing::ToyRun<Zero1Sharding>;

// An optimizer that is not sharded passes every comparison of weights. It does not pass this.
TEST(Zero1, HoldsOptimizerStateForItsOwnParametersOnly) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      Trial run(communicator);
      run.step(0);
      Zero1Sharding& zero1 = run.strategy;
      for (std::size_t i = 0; i < zero1.list().size(); ++i) {
        const nn::Parameter& p = zero1.list().parameters[i];
        EXPECT_EQ(zero1.optimizer().state(p.tensor).empty(), !zero1.owns(i)) << p.name;
      }
      const std::int64_t v = zero1.list().bytes();
      const std::int64_t owned = testing::owned_bytes(zero1);
      EXPECT_EQ(run.held(Category::kParameters), v);
      EXPECT_EQ(run.held(Category::kGradients), v);
      EXPECT_EQ(run.held(Category::kOptimizer), 2 * owned);
      if (communicator.size() > 1) {
        EXPECT_LT(owned, v);
      }
    });
  }
}

}  // namespace
}  // namespace zero
