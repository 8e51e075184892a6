// The engine's options of ZeRO++, which make it the strategy of chapter 07.
#include <gmock/gmock.h>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/engine/engine_config.hpp>

namespace zero::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineWithSecondaryShards, TrainsAsStage3) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto trained = [&](const OverlapOptions& options) {
      EngineRun run(communicator, {.overlap = options, .clip_norm = 0.5});
      run.steps(0, 3);
      return run.weights();
    };
    const auto plain = trained({});
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, kRanksOfHost}) {
      EXPECT_TRUE(same_bits(trained({.group_size = size, .secondary_shards = true}), plain))
          << size;
    }
  });
}

TEST(EngineWithSecondaryShards, SkipsAStepThatOverflows) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto trained = [&](const OverlapOptions& options) {
      EngineRun run(communicator, {.overlap = options,
                                   .on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
      run.step(0);
      run.make_gradient_infinite(communicator.rank() == 3);
      EXPECT_FALSE(run.step(1));
      run.make_gradient_infinite(false);
      run.steps(2, 4);
      return run.weights();
    };
    EXPECT_TRUE(same_bits(trained({.group_size = 2, .secondary_shards = true}), trained({})));
  });
}

constexpr OverlapOptions kEverything = {.group_size = 2,
                                        .secondary_shards = true,
                                        .quantize_parameters = true,
                                        .quantize_gradients = true};

// Three batches over and over: the sums of their losses over all ranks, at first and in the end.
std::pair<double, double> losses_of_60_steps(dist::Communicator& communicator,
                                             const OverlapOptions& options) {
  EngineRun run(communicator, {.overlap = options}, optim::adamw({.learning_rate = 0.02}));
  std::vector<double> sums(2, 0);
  for (int s = 0; s < 60; ++s) {
    const at::Tensor loss = run.forward(s % 3);
    run.engine.backward(loss);
    run.engine.step();
    if (s < 3 || s >= 57) sums[s < 3 ? 0 : 1] += loss.item<double>();
  }
  std::pair<double, double> of_all_ranks;
  const std::vector<double> all = dist::all_gather_scalars(communicator, sums);
  for (std::size_t k = 0; k < all.size(); k += 2) {
    of_all_ranks.first += all[k];
    of_all_ranks.second += all[k + 1];
  }
  return of_all_ranks;
}

TEST(EngineWithZeroPlusPlus, TrainsCloseToStage3) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto [first, plain] = losses_of_60_steps(communicator, {});
    const auto [other_first, found] = losses_of_60_steps(communicator, kEverything);
    EXPECT_LT(plain, 0.5 * first);
    EXPECT_NEAR(found, plain, 0.05 * first);
    EXPECT_NE(found, plain);
  });
}

TEST(EngineWithZeroPlusPlus, SkipsAStepThatOverflows) {
  on_ranks(4, [](dist::Communicator& communicator) {
    EngineRun run(communicator, {.overlap = kEverything,
                                 .on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
    run.step(0);
    const auto before = run.weights();
    run.make_gradient_infinite(communicator.rank() == 3);
    EXPECT_FALSE(run.step(1));
    EXPECT_TRUE(same_bits(run.weights(), before));
    run.make_gradient_infinite(false);
    EXPECT_TRUE(run.step(2));
    EXPECT_FALSE(same_bits(run.weights(), before));
  });
}

TEST(EngineWithSecondaryShards, ReadsItsOptions) {
  const OverlapOptions ours =
      engine_config(R"({"secondary_shards": true, "group_size": 4})").overlap;
  EXPECT_TRUE(ours.secondary_shards);
  EXPECT_EQ(ours.group_size, 4);
  EXPECT_EQ(engine_config(R"({"secondary_shards": true})").overlap.group_size, kRanksOfHost);
  expect_error([] { engine_config(R"({"group_size": 0})"); },
               {"group_size is 0; it must be \"host\" or a whole number from 1"});
  expect_error([] { overlap_options(3, "secondary_shards=true"); }, {"take mode hpz"});

  const OverlapOptions mode = zero_plus_plus_options({.secondary_shards = true}, "group_size=2");
  EXPECT_TRUE(mode.secondary_shards);
  EXPECT_EQ(mode.group_size, 2);
  expect_error([] { zero_plus_plus_options({.secondary_shards = true}, "secondary_shards=false"); },
               {"those of mode engine3, but mode hpz was asked for"});
  expect_error(
      [] { zero_plus_plus_options({.secondary_shards = true}, "quantize_gradients=true"); },
      {"those of mode zeropp, but mode hpz"});
  expect_error([] { zero_plus_plus_options({.secondary_shards = true}, "stage=2"); },
               {"need stage 3"});
  expect_error([] { zero_plus_plus_options({.secondary_shards = true}, "shard_size=2"); },
               {"leave it out"});
}

TEST(EngineWithZeroPlusPlus, ReadsItsOptions) {
  const OverlapOptions ours = engine_config(R"({"quantize_parameters": true,
      "quantize_gradients": true, "gradient_bits": 8, "quantization_block": 512,
      "gradient_block": 128})")
                                  .overlap;
  EXPECT_TRUE(ours.quantize_parameters);
  EXPECT_TRUE(ours.quantize_gradients);
  EXPECT_EQ(ours.gradient_bits, 8);
  EXPECT_EQ(ours.quantization_block, 512);
  EXPECT_EQ(ours.gradient_block, 128);
  EXPECT_EQ(zero_plus_plus_mode(ours), "zeropp");
  EXPECT_EQ(zero_plus_plus_mode({.secondary_shards = true}), "hpz");
  EXPECT_EQ(zero_plus_plus_mode({.quantize_parameters = true}), "qwz");
  EXPECT_EQ(zero_plus_plus_mode({.quantize_gradients = true}), "qgz");
  EXPECT_EQ(zero_plus_plus_mode({}), "");
  expect_error([] { checked({.quantize_gradients = true, .gradient_bits = 5}); },
               {"gradient_bits is 5; take 4 or 8"});
  expect_error([] { checked({.quantize_gradients = true, .quantization_block = 33}); },
               {"quantization_block is 33; take an even number"});
  expect_error([] { overlap_options(3, "quantize_gradients=true"); }, {"take mode qgz"});
}

TEST(EngineWithZeroPlusPlus, ReadsDeepSpeedsNames) {
  const auto read = [](const char* json) { return engine_config_from_deepspeed(json); };
  const OverlapOptions all = read(R"({"stage": 3, "zero_hpz_partition_size": 8,
      "zero_quantized_weights": true, "zero_quantized_gradients": true})")
                                 .config.overlap;
  EXPECT_EQ(zero_plus_plus_mode(all), "zeropp");
  EXPECT_EQ(all.group_size, 8);
  const OverlapOptions gradients =
      read(R"({"stage": 3, "zero_quantized_gradients": true})").config.overlap;
  EXPECT_EQ(zero_plus_plus_mode(gradients), "qgz");
  EXPECT_EQ(gradients.group_size, kRanksOfHost);
  EXPECT_EQ(
      zero_plus_plus_mode(read(R"({"stage": 3, "zero_hpz_partition_size": 1})").config.overlap),
      "");
  const ReadConfig below =
      read(R"({"stage": 2, "zero_hpz_partition_size": 8, "zero_quantized_weights": true})");
  EXPECT_EQ(zero_plus_plus_mode(below.config.overlap), "");
  EXPECT_THAT(below.notes, ElementsAre(HasSubstr("make no difference below stage 3")));
}

}  // namespace
}  // namespace zero::testing
