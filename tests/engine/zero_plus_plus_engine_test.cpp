// The engine's options of ZeRO++, which make it the strategy of chapter 07.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine_config.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

TEST(EngineWithSecondaryShards, TrainsAsStage3) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto trained = [&](const std::string& options) {
      EngineConfig config = engine_config(options);
      config.clip_norm = 0.5;
      EngineRun run(communicator, config);
      run.steps(0, 3);
      return run.weights();
    };
    const auto plain = trained("{}");
    for (const char* const size : {"1", "2", "\"host\""}) {
      EXPECT_TRUE(same_bits(
          trained(fmt::format(R"({{"group_size": {}, "secondary_shards": true}})", size)), plain))
          << size;
    }
  });
}

TEST(EngineWithSecondaryShards, SkipsAStepThatOverflows) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto trained = [&](const std::string& options) {
      EngineConfig config = engine_config(options);
      config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
      EngineRun run(communicator, config);
      run.step(0);
      run.make_gradient_infinite(communicator.rank() == 3);
      EXPECT_FALSE(run.step(1));
      run.make_gradient_infinite(false);
      run.steps(2, 4);
      return run.weights();
    };
    EXPECT_TRUE(
        same_bits(trained(R"({"group_size": 2, "secondary_shards": true})"), trained("{}")));
  });
}

// What is not set is off.
TEST(EngineWithZeroPlusPlus, HasNoPartThatIsNotSet) {
  const std::vector<const char*> parts = {"secondary_shards", "quantize_parameters",
                                          "quantize_gradients"};
  for (unsigned chosen = 1; chosen < 8; ++chosen) {
    std::string ours;
    for (unsigned p = 0; p < 3; ++p) {
      const bool is_on = (chosen >> p) % 2 == 1;
      if (is_on) ours += fmt::format("{}\"{}\": true", ours.empty() ? "" : ", ", parts[p]);
    }
    const std::string text = base::text_of(engine_config("{" + ours + "}"));
    for (unsigned p = 0; p < 3; ++p) {
      EXPECT_THAT(text, HasSubstr(fmt::format("\"{}\": {}", parts[p], (chosen >> p) % 2 == 1)));
    }
  }
}

// The bytes of gradients are those of engine3 if only parameters are touched.
TEST(EngineWithZeroPlusPlus, SendsGradientsAsTheyAreUnlessTheyAreQuantized) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto gradient_bytes = [&](const std::string& more) {
      EngineRun run(communicator, engine_config(more));
      const std::int64_t before = communicator.traffic().bytes(dist::Purpose::kGradient);
      run.step(0);
      return communicator.traffic().bytes(dist::Purpose::kGradient) - before;
    };
    EXPECT_EQ(gradient_bytes(R"({"group_size": 2, "secondary_shards": true,
                                 "quantize_parameters": true})"),
              gradient_bytes("{}"));
  });
}

constexpr const char* kEverything = R"({"group_size": 2, "secondary_shards": true,
                                         "quantize_parameters": true, "quantize_gradients": true})";

// Three batches over and over: the sums of their losses over all ranks, at first and in the end.
std::pair<double, double> losses_of_60_steps(dist::Communicator& communicator,
                                             const std::string& options) {
  EngineRun run(communicator, engine_config(options), optim::adamw({.learning_rate = 0.02}));
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
    const auto [first, plain] = losses_of_60_steps(communicator, "{}");
    const auto [other_first, found] = losses_of_60_steps(communicator, kEverything);
    EXPECT_LT(plain, 0.5 * first);
    EXPECT_NEAR(found, plain, 0.05 * first);
    EXPECT_NE(found, plain);
  });
}

TEST(EngineWithZeroPlusPlus, SkipsAStepThatOverflows) {
  on_ranks(4, [](dist::Communicator& communicator) {
    EngineConfig config = engine_config(kEverything);
    config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
    EngineRun run(communicator, config);
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

// What a file or a command line says, and the mode that it makes.
TEST(EngineWithZeroPlusPlus, RefusesSizesThatDoNotFitOnAllRanks) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto refused = [&](std::int64_t size, const char* why) {
      expect_error([&] { EngineRun(communicator, {.group_size = size, .secondary_shards = true}); },
                   {why});
    };
    refused(3, "4 is not a multiple of 3");
    refused(8, "must be from 1 to 4");
    refused(0, "group_size is 0; it must be \"host\" or a whole number from 1");
    EngineRun run(communicator, {.group_size = 2, .secondary_shards = true});
    run.step(0);  // the ranks still understand each other
  });
}

TEST(EngineWithZeroPlusPlus, ReadsItsOptions) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {R"({"secondary_shards": true, "group_size": 4})", "hpz"},
      {R"({"quantize_parameters": true, "quantization_block": 512})", "qwz"},
      {R"({"quantize_gradients": true, "gradient_bits": 8, "gradient_block": 128})", "qgz"},
      {R"({"quantize_parameters": true, "secondary_shards": true, "lookahead": 0})", "zeropp"},
      {R"({"secondary_shards": false, "lookahead": 2, "quantize_gradients": true})", "qgz"}};
  for (const auto& [json, mode] : rows) EXPECT_EQ(mode_of(engine_config(json)), mode) << json;
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {R"({"group_size": 0, "secondary_shards": true})",
       "group_size is 0; it must be \"host\" or a whole number from 1"},
      {R"({"group_size": 2})", "no part of ZeRO++ is chosen"},
      {R"({"stage": 2, "secondary_shards": true})", "need stage 3"},
      {R"({"quantize_gradients": true, "gradient_bits": 5})",
       "gradient_bits is 5; it must be 4 or 8"},
      {R"({"quantize_gradients": true, "quantization_block": 33})",
       "quantization_block is 33; it must be an even number"}};
  for (const auto& row : wrong) expect_error([&] { engine_config(row.first); }, {row.second});
}

TEST(EngineWithZeroPlusPlus, ReadsItsOptionsInAMode) {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  EXPECT_TRUE(registry.config("hpz:group_size=2").secondary_shards);
  EXPECT_EQ(registry.config("hpz:group_size=2").group_size, 2);
  EXPECT_FALSE(registry.config("hpz:group_size=2").quantize_gradients);
  EXPECT_EQ(registry.config("qgz:by_rank").group_size, 1);
  EXPECT_TRUE(registry.config("zeropp:quantize_gradients=false").quantize_parameters);
  const char* const another = "was asked for, but with these settings it is";
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"hpz:secondary_shards=false", another},
      {"hpz:quantize_gradients=true", "mode hpz was asked for"},
      {"hpz:stage=2", "need stage 3"},
      {"hpz:shard_size=2", "cannot be together"},
      {"engine3:secondary_shards=true", another}};
  for (const auto& row : wrong) expect_error([&] { registry.check(row.first); }, {row.second});
}

}  // namespace
}  // namespace zero::testing
