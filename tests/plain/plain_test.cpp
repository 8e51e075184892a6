// Modules of torch::nn that know nothing of the library, under the strategies of all stages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tests/support/modes.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "plain_modules.hpp"

namespace zero::testing {
namespace {

PlainModule made(const PlainCase& plain) {
  at::manual_seed(7);
  return plain.make();
}

// Trains three steps of two micro-batches.
WholeState trained(dist::Communicator& communicator, const PlainModule& made,
                   const nn::UnitRule& units, const std::string& mode,
                   const optim::OptimizerFactory& optimizer = optim::adamw()) {
  const auto strategy = make_strategy(
      mode, {.module = *made.module, .mesh = communicator, .optimizer = optimizer, .units = units});
  for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
    at::manual_seed(100 * micro_batch + communicator.rank());
    const bool is_last = micro_batch % 2 == 1;
    strategy->set_requires_gradient_sync(is_last);
    strategy->backward(strategy->forward(made.loss));
    strategy->finish_backward();
    if (!is_last) continue;
    strategy->optimizer_step();
    strategy->sync_parameters();
    strategy->zero_grad();
  }
  return whole_state(*strategy);
}

WholeState trained(dist::Communicator& communicator, const PlainCase& plain,
                   const std::string& mode) {
  return trained(communicator, made(plain), plain.units, mode);
}

constexpr auto kModes = {"zero1",   "zero2",   "zero3",   "tensor_zero3",       "engine0",
                         "engine1", "engine2", "engine3", "engine3:lookahead=0"};

class Plain : public ::testing::TestWithParam<PlainCase> {};

TEST_P(Plain, EndsWithTheBitsOfDdp) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [](dist::Communicator& communicator) {
      const WholeState ddp = trained(communicator, GetParam(), "ddp");
      for (const char* mode : kModes) {
        SCOPED_TRACE(mode);
        EXPECT_TRUE(same_state(trained(communicator, GetParam(), mode), ddp));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Plain, ::testing::ValuesIn(plain_cases()),
                         [](const auto& info) { return info.param.name; });

// With the bits of the plain module under DDP: it, the module with units among its blocks, and the
// model of units, in `dtype`.
void expect_same_bits_with_units(dist::Communicator& communicator, at::ScalarType dtype,
                                 const optim::OptimizerFactory& optimizer) {
  const auto trained_as = [&](const char* name, const std::string& mode) {
    const PlainModule module = made(plain_case(name));
    module.module->to(dtype);
    return trained(communicator, module, plain_case(name).units, mode, optimizer);
  };
  const WholeState ddp = trained_as("gpt2", "ddp");
  for (const char* mode : kModes) {
    for (const char* name : {"gpt2_of_units", "gpt2", "gpt2_mixed"}) {
      SCOPED_TRACE(fmt::format("{} as {}", name, mode));
      EXPECT_TRUE(same_state(trained_as(name, mode), ddp));
    }
  }
}

ZERO_TESTS_ON_RANKS(PlainBesideUnits, 1, 2, 3, 4);

TEST_P(PlainBesideUnits, HasTheSameBits) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    expect_same_bits_with_units(communicator, at::kFloat, optim::adamw());
  });
}

TEST_P(PlainBesideUnits, HasTheSameBitsInBfloat16WithMasterWeights) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    expect_same_bits_with_units(communicator, at::kBFloat16,
                                optim::with_master_weights(optim::adamw()));
  });
}

}  // namespace
}  // namespace zero::testing
