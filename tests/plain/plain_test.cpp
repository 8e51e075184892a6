// Modules of torch::nn that know nothing of the library, under the strategies of all stages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tests/support/modes.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/adamw.hpp>

#include "plain_modules.hpp"

namespace zero::testing {
namespace {

// Trains three steps of two micro-batches.
WholeState trained(dist::Communicator& communicator, const PlainCase& plain,
                   const std::string& mode) {
  at::manual_seed(7);
  const PlainModule made = plain.make();
  nn::PlainModel model(*made.module, plain.units);
  model.set_forward(made.loss);
  const auto strategy =
      make_strategy(mode, {.model = model, .mesh = communicator, .optimizer = optim::adamw()});
  for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
    at::manual_seed(100 * micro_batch + communicator.rank());
    const bool is_last = micro_batch % 2 == 1;
    strategy->set_requires_gradient_sync(is_last);
    strategy->backward(strategy->forward({}));
    strategy->finish_backward();
    if (!is_last) continue;
    strategy->optimizer_step();
    strategy->sync_parameters();
    strategy->zero_grad();
  }
  return whole_state(*strategy);
}

class Plain : public ::testing::TestWithParam<PlainCase> {};

TEST_P(Plain, EndsWithTheBitsOfDdp) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [](dist::Communicator& communicator) {
      const WholeState ddp = trained(communicator, GetParam(), "ddp");
      for (const char* mode : {"zero1", "zero2", "zero3", "tensor_zero3", "engine0", "engine1",
                               "engine2", "engine3", "engine3:lookahead=0"}) {
        SCOPED_TRACE(mode);
        EXPECT_TRUE(same_state(trained(communicator, GetParam(), mode), ddp));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Plain, ::testing::ValuesIn(plain_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace zero::testing
