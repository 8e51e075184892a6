// Strategy::release(): another strategy can take a released model. A model that is held, or was
// never released, is refused.
#include <ATen/ops/equal.h>

#include <memory>
#include <string>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/random_model.hpp>
#include <tests/support/session.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// A model with deferred storage and a source of first values. A second strategy must keep the
// trained values and not ask the source again.
struct Subject {
  std::unique_ptr<train::Strategy> strategy(dist::Communicator& communicator,
                                            const std::string& mode) {
    return make_strategy(mode, {.module = *model,
                                .mesh = communicator,
                                .optimizer = optim::adamw({.learning_rate = 0.01}),
                                .values = &values});
  }
  std::shared_ptr<RandomModel> model = make_deferred<RandomModel>(RandomModelConfig{});
  nn::SeededValues values{3};
};

void train_steps(train::Strategy& strategy, int first, int last) {
  for (int step = first; step < last; ++step) {
    const int rank = strategy.communicator().rank();
    strategy.backward(forward_batch(strategy, random_model_batch({}, /*seed=*/17, rank, step)));
    finish_step(strategy);
    strategy.zero_grad();
  }
}

// Trains two steps under `mode`, releases, trains two under `then`; returns the weights.
std::vector<at::Tensor> trained_twice(dist::Communicator& communicator, const std::string& mode,
                                      const std::string& then) {
  Subject subject;
  const auto first = subject.strategy(communicator, mode);
  train_steps(*first, 0, 2);
  const std::vector<at::Tensor> before = whole_weights(*first);
  first->release();
  std::size_t i = 0;
  for (const nn::Parameter& p : first->list().parameters) {
    EXPECT_TRUE(memory::has_storage(p.tensor) && at::equal(p.tensor, before[i++]))
        << mode << " gave back another " << p.name;
    EXPECT_EQ(p.tensor.storage().nbytes(), p.tensor.nbytes()) << mode << ": " << p.name;
  }
  const auto second = subject.strategy(communicator, then);
  train_steps(*second, 2, 4);
  return whole_weights(*second);
}

ZERO_TESTS_ON_RANKS(Release, 2, 3);

TEST_P(Release, AnotherStrategyTakesTheModel) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::vector<at::Tensor> reference = trained_twice(communicator, "ddp", "ddp");
    for (const std::string& mode : all_modes()) {
      EXPECT_TRUE(same_bits(trained_twice(communicator, mode, "engine3"), reference)) << mode;
      EXPECT_TRUE(same_bits(trained_twice(communicator, "zero3", mode), reference)) << mode;
    }
  });
}

TEST_P(Release, AModelThatIsHeldIsRefused) {
  on_modes(GetParam(), all_strategies(),
           [](dist::Communicator& communicator, const std::string& mode) {
             Subject subject;
             const auto first = subject.strategy(communicator, mode);
             EXPECT_THAT(
                 error_of([&] { subject.strategy(communicator, "engine3"); }),
                 HasSubstr("the model is held by " + mode + ": a strategy gives its model back"));
             train_steps(*first, 0, 1);  // the refused constructor changed nothing
             first->release();
             expect_error([&] { train_steps(*first, 1, 2); }, {mode + " has released its model"});
           });
}

TEST_P(Release, AModelThatWasNotReleasedOrIsHeldOnOneRankIsRefusedOnAll) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string mode : {"tensor_zero1", "engine0", "engine2"}) {
      Subject subject, other;
      auto first = subject.strategy(communicator, mode);
      train_steps(*first, 0, 1);
      expect_error(
          [&] { (communicator.rank() == 0 ? subject : other).strategy(communicator, "zero2"); },
          {"the model is held by " + mode, "rank 1"});
      first.reset();
      expect_error([&] { subject.strategy(communicator, "zero3"); },
                   {"over the same memory", "whose strategy was destroyed without release()"});
    }
  });
}

}  // namespace
}  // namespace zero::testing
