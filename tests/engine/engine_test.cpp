// What the engine promises its program, whether the model is a plain module or one of units.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>
#include <tests/plain/plain_run.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

TEST(Engine, LoadGivesUpTheStepThatHasBegun) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    for (const char* model : {"gpt2", "gpt2_of_units"}) {
      const EngineConfig config{.stage = stage, .accumulation_steps = 2};
      PlainRun run(communicator, model, config), undisturbed(communicator, model, config);
      for (const int s : {0, 1}) run.step(s);
      run.engine.save(folder.path());
      run.backward(7);
      EXPECT_TRUE(run.engine.load(folder.path()));
      EXPECT_FALSE(run.step(2));
      EXPECT_TRUE(run.step(3));
      for (const int s : {0, 1, 2, 3}) undisturbed.step(s);
      EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
    }
  });
}

TEST(Engine, LoadsOnAllRanksOrOnNone) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    EngineRun run(communicator, {.stage = 2});
    run.step(0);
    run.engine.save(folder / "run");
    expect_error([&] { run.engine.load(folder / (run.rank == 0 ? "run" : "nothing")); },
                 {"the checkpoint to go on from", "rank 0 has there is one", "rank 1 has none"});
    EXPECT_TRUE(run.engine.load(folder / "run"));
  });
}

TEST(Engine, RefusesRanksThatStepInDifferentWays) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto refused = [&](const std::function<void(EngineConfig&)>& change) {
      EngineConfig config;
      if (communicator.rank() == 1) change(config);
      expect_error([&] { EngineRun(communicator, config); }, {"the step in Engine::Engine"});
    };
    refused([](EngineConfig& c) { c.accumulation_steps = 2; });
    refused([](EngineConfig& c) { c.clip_norm = 1; });
    refused([](EngineConfig& c) { c.loss_scale.initial = 2; });
    refused([](EngineConfig& c) { c.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip; });
  });
}

// Between micro-batches a rank holds what the formula says for the end of a step, and not all
// gradients. The bits are those of the trainer that adds up averages.
TEST(Engine, ReducesEachMicroBatchIfItIsToldTo) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    const auto held_between = [&](EngineRun& run) {
      const memory::Snapshot before = memory::snapshot();
      run.step(0);
      const std::int64_t held = states_since(before).gradients;
      run.steps(1, 6);
      return held;
    };
    EngineConfig config{.stage = stage, .accumulation_steps = 3};
    EngineRun once(communicator, config);
    config.reduce_each_micro_batch = true;
    EngineRun each(communicator, config);
    const std::int64_t all = each.engine.strategy().list().bytes();
    EXPECT_GE(held_between(once), all);
    const dist::Traffic before = communicator.traffic();
    EXPECT_EQ(held_between(each), each.engine.strategy().costs().at_rest.gradients);

    Toy toy;
    const auto strategy = make_strategy(fmt::format("engine{}", stage),
                                        {.module = *toy.model,
                                         .mesh = communicator,
                                         .optimizer = optim::adamw(),
                                         .values = &toy.values,
                                         .accumulation = train::Accumulation::kReduceEach});
    const dist::Traffic of_engine = communicator.traffic().since(before);
    tools::Trainer trainer(*strategy, losses_of(*strategy));
    const dist::Traffic begin = communicator.traffic();
    for (const int s : {0, 3}) {
      trainer.step(
          {toy.batch(each.rank, s), toy.batch(each.rank, s + 1), toy.batch(each.rank, s + 2)});
    }
    EXPECT_TRUE(same_bits(each.weights(), whole_weights(*strategy)));
    EXPECT_EQ(of_engine.bytes(dist::Purpose::kGradient),
              communicator.traffic().since(begin).bytes(dist::Purpose::kGradient));
  });
}

// 2^8 equal terms are the most that a sum in bfloat16 can hold.
TEST(Engine, SaysOnceThatManyMicroBatchesAreAddedUpInBfloat16) {
  const auto said = [](at::ScalarType dtype, std::int64_t micro_batches) {
    const auto exits = ranks_ended({.world_size = 2}, [&](dist::Communicator& communicator) {
      EngineRun run(communicator, {.accumulation_steps = micro_batches},
                    optim::with_master_weights(optim::adamw()), dtype);
    });
    return exits[0].output + exits[1].output;
  };
  const std::string note = said(at::kBFloat16, 64);
  const auto first = note.find("note: gradients of 64 micro-batches are added up in bfloat16");
  ASSERT_NE(first, std::string::npos) << note;
  EXPECT_EQ(note.find("note: gradients", first + 1), std::string::npos) << note;
  for (const auto& quiet : {said(at::kBFloat16, 63), said(at::kFloat, 64)}) {
    EXPECT_THAT(quiet, ::testing::Not(::testing::HasSubstr("are added up in bfloat16")));
  }
}

}  // namespace
}  // namespace zero::testing
