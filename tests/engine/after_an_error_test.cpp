// What a program may do after an exception has left backward(), and with a model whose engine is
// gone.

#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/thrown_by.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(AfterAnError, 2, 3);

struct Thrown : std::exception {};

// Throws when the gradient of parameter `index` is ready in micro-batch `number`.
void backward_that_throws(EngineRun& run, int number, std::size_t index) {
  train::AutogradPasses& passes = run.engine.strategy().passes();
  passes.observe_gradients([=](std::size_t i, const at::Tensor&) {
    if (i == index) throw Thrown();
  });
  EXPECT_THROW(run.engine.backward(run.forward(number)), Thrown);
  passes.observe_gradients({});
}

TEST_P(AfterAnError, InBackwardOnlyGiveUpStepIsTaken) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const std::size_t index : {0U, 3U}) {  // the last and the first of backward
      for (const int good_ones : {0, 1, 2}) {   // micro-batches before it
        SCOPED_TRACE(fmt::format("parameter {}, micro-batch {}", index, good_ones));
        const EngineConfig config{.stage = stage, .accumulation_steps = 3};
        EngineRun run(communicator, config), undisturbed(communicator, config);
        run.steps(0, 3);
        run.steps(10, 10 + good_ones);
        backward_that_throws(run, 10 + good_ones, index);
        for (int again = 0; again < 2; ++again) {
          const std::string text = "an exception has left backward() in this step";
          expect_error([&] { run.engine.step(); }, {text, "give_up_step()"});
          expect_error([&] { run.forward(13); }, {text, "give_up_step()"});
          expect_error([&] { run.engine.backward(at::Tensor()); }, {text, "give_up_step()"});
          expect_error([&] { run.engine.strategy(); }, {text, "give_up_step()"});
          expect_error([&] { run.engine.save(folder.path()); }, {"save() in the middle of a step"});
          expect_error([&] { run.engine.release(); }, {"release() in the middle of a step"});
          expect_error([&] { run.engine.finish_save(); }, {text, "give_up_step()"});
        }
        run.engine.give_up_step();
        run.steps(3, 6);
        undisturbed.steps(0, 6);
        EXPECT_EQ(run.engine.steps(), 2);
        EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
      }
    }
  });
}

TEST_P(AfterAnError, AModelWhoseEngineIsGoneSaysSo) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const std::string end : {"constructor", "step", "backward", "exception"}) {
      SCOPED_TRACE(end);
      const Toy toy = Toy::alone();
      auto engine = std::make_unique<Engine>(*toy.model, communicator, optim::adamw(),
                                             EngineConfig{.stage = stage});
      const auto loss = [&] { return forward_batch(*engine, toy.batch(communicator.rank(), 0)); };
      if (end == "exception") {
        const at::Tensor value = loss();
        value.register_hook([](const at::Tensor&) { throw Thrown(); });
        EXPECT_THROW(engine->backward(value), Thrown);
      } else if (end != "constructor") {
        engine->backward(loss());
        if (end == "step") engine->step();
      }
      engine.reset();
      const auto use = [&] {
        toy.model->zero_grad();
        data::loss_of(*toy.model, toy.batch(0, 1)).backward();
      };
      if (stage < 3) {
        use();  // whole on every rank: a model like any other
        EXPECT_TRUE(toy.model->parameters()[0].grad().defined());
      } else {
        EXPECT_THAT(thrown_by(use), AllOf(HasSubstr("a read of parameter 'layers.0.linear."),
                                          HasSubstr("engine3, which had its values, was destroyed"),
                                          HasSubstr("call release() on all ranks")));
      }
    }
  });
}

// Rank 0 has begun reductions that the others have not. (At stage 3 all have gathered the same, one
// unit ahead.)
// Before they complete a checkpoint that is written behind.
TEST_P(AfterAnError, InBackwardRanksReduceWhatOneOfThemHasBegun) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const bool destroys : {false, true}) {
      SCOPED_TRACE(destroys);
      const EngineConfig config{.stage = stage, .bucket_bytes = 1};
      EngineRun undisturbed(communicator, config);
      undisturbed.steps(0, 3);
      std::optional<EngineRun> run;
      run.emplace(communicator, config);
      run->step(0);
      run->engine.save(folder.path(), {.behind = true});
      backward_that_throws(*run, 1, run->rank == 0 ? 0 : 3);
      if (destroys) {
        run.reset();
        run.emplace(communicator, config);
        run->step(0);
      } else {
        run->engine.give_up_step();
      }
      run->steps(1, 3);
      EXPECT_TRUE(same_bits(run->weights(), undisturbed.weights()));
    }
  });
}

// Rank 1 alone catches an exception of backward() and destroys its engine. Then it ends, or makes
// another one. The others go on.
std::vector<dist::RankExit> ends_after_one_threw(int ranks, const EngineConfig& config,
                                                 std::size_t index, bool makes_another) {
  return ranks_ended({.world_size = ranks, .timeout = std::chrono::minutes(5)},
                     [&](dist::Communicator& communicator) {
                       std::optional<EngineRun> run;
                       run.emplace(communicator, config);
                       run->step(0);
                       if (run->rank == 1) {
                         backward_that_throws(*run, 1, index);
                         run.reset();
                         if (!makes_another) return;
                         run.emplace(communicator, config);
                       }
                       run->steps(1, 3);
                     });
}

class AfterAnErrorOfOneRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AfterAnErrorOfOneRank, ::testing::Values(2, 3), name_of_ranks);

// Long before the time limit.
TEST_P(AfterAnErrorOfOneRank, TheOthersHearOfItInTheSameStep) {
  using Place = std::pair<std::int64_t, std::size_t>;  // bytes of a bucket, parameter
  for (const auto& [bucket, index] : {Place{1, 0}, Place{1 << 20, 3}}) {
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(fmt::format("bucket {}, stage {}, parameter {}", bucket, stage, index));
      const EngineConfig config{.stage = stage, .bucket_bytes = bucket};
      // Where ranks tell each other next.
      const std::string call = stage == 0 ? "Engine::backward" : "Engine::step";
      expect_errors(ends_after_one_threw(GetParam(), config, index, /*makes_another=*/true),
                    AllOf(HasSubstr(call), HasSubstr("Engine::Engine")));
      // Another rank may have left first, after that error.
      bool is_named = false;
      for (const auto& end : ends_after_one_threw(GetParam(), config, index, false)) {
        if (end.rank == 1) {
          EXPECT_EQ(end.exit_code, 0) << end.output;
        } else {
          EXPECT_EQ(end.exit_code, 1);
          EXPECT_THAT(end.output, AllOf(HasSubstr("in " + call + " in step 1"),
                                        ContainsRegex("the connection to rank [012] is gone")));
          is_named = is_named || end.output.find("rank 1 is gone") != std::string::npos;
        }
      }
      EXPECT_TRUE(is_named);
    }
  }
}

TEST(Engine, KeepsAModuleThatAPointerOwns) {
  on_ranks(2, [](dist::Communicator& communicator) {
    auto net = std::make_shared<torch::nn::LinearImpl>(3, 3);
    const std::weak_ptr<torch::nn::LinearImpl> seen = net;
    {
      Engine engine(*net, communicator, optim::adamw());
      net.reset();
      EXPECT_FALSE(seen.expired());
    }
    EXPECT_TRUE(seen.expired());
  });
}

// Also after a backward() that went well.
TEST(Engine, IsBetweenTwoStepsAfterGiveUpStep) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    EngineRun run(communicator, {.stage = 2, .accumulation_steps = 2});
    run.engine.backward(run.forward(0));
    run.engine.give_up_step();
    expect_error([&] { run.engine.step(); }, {"step() before the engine's backward()"});
    EXPECT_NO_THROW(run.engine.save(folder.path()));
  });
}

}  // namespace
}  // namespace zero::testing
