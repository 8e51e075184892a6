// Ranks that were given different things: an error on all of them, before training, that names the
// first difference and both sides.

#include <ATen/ops/ones.h>

#include <tests/support/session.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs `setup` on three ranks, of which the last is told to be different.
void expect_refused(const std::function<void(dist::Communicator&, bool different)>& setup,
                    const std::string& about, const std::string& of_rank_0,
                    const std::string& of_rank_2) {
  const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
    setup(communicator, communicator.rank() == 2);
  });
  expect_errors(
      exits, AllOf(HasSubstr("ranks disagree about " + about), HasSubstr("rank 0 has " + of_rank_0),
                   HasSubstr("rank 2 has " + of_rank_2)));
}

void expect_sessions_refused(const std::function<void(SessionOptions&)>& change,
                             const std::string& about, const std::string& of_rank_0,
                             const std::string& of_rank_2) {
  expect_refused(
      [&](dist::Communicator& communicator, bool different) {
        SessionOptions options;
        if (different) change(options);
        Session(communicator, "zero1", options).step(0);
      },
      about, of_rank_0, of_rank_2);
}

const std::string kModel = "the model or the strategy";

TEST(Disagreement, AboutTheMode) {
  expect_refused(
      [](dist::Communicator& communicator, bool different) {
        Session(communicator, different ? "zero1:naive" : "zero1").step(0);
      },
      "the mode", "zero1", "zero1:naive");
}

TEST(Disagreement, AboutTheModelOrItsTraining) {
  const std::string owner = "variant 'owner', ownership by ",
                    first = "parameter 'first' [7, 5] Float";
  expect_sessions_refused([](SessionOptions& o) { o.ownership = train::Ownership::kByCount; },
                          kModel, owner + "size", owner + "count");
  expect_sessions_refused(
      [](SessionOptions& o) { o.accumulation = train::Accumulation::kReduceEach; }, kModel,
      owner + "size, accumulation before the reduction",
      owner + "size, a reduction of every micro-batch");
  expect_sessions_refused([](SessionOptions& o) { o.model.inputs = 6; }, kModel,
                          first + ", trainable", "parameter 'first' [7, 6] Float, trainable");
  expect_sessions_refused([](SessionOptions& o) { o.model.dtype = at::kDouble; }, kModel, first,
                          "parameter 'first' [7, 5] Double");
  expect_sessions_refused([](SessionOptions& o) { o.model.parts += "a"; }, kModel, "nothing more",
                          "parameter 'parts.3.weight' [7, 7]");
  expect_sessions_refused([](SessionOptions& o) { o.trainer.clip_norm = 1; },
                          "the step in Trainer::Trainer", "a clip norm of 0", "a clip norm of 1");
  expect_sessions_refused([](SessionOptions& o) { o.trainer.first_step = 7; },
                          "the step in Trainer::Trainer", "first step 0", "first step 7");
}

TEST(Disagreement, AboutWhatIsFrozen) {
  expect_refused(
      [](dist::Communicator& communicator, bool different) {
        RandomModel model(RandomModelConfig{});
        nn::SeededValues values(1);
        nn::initialize_parameters(model, values);
        if (different) model.parameters().front().requires_grad_(false);
        make_strategy("ddp", {model, communicator, optim::adamw(), nullptr, ""});
      },
      kModel, "parameter 'first' [7, 5] Float, trainable",
      "parameter 'first' [7, 5] Float, frozen");
}

TEST(Disagreement, AboutTheNumberOfMicroBatches) {
  for (const bool evaluating : {false, true}) {
    const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
      Session session(communicator, "zero2");
      std::vector<data::Batch> batches(communicator.rank() == 2 ? 3 : 2, session.batch(0));
      if (evaluating) session.trainer().evaluate(batches);
      session.trainer().step(batches);
    });
    expect_errors(exits, HasSubstr("step 0: rank 2 has 3 micro-batches, rank 0 has 2"));
  }
}

// Not a mistake: rank 0's first values replace the others'.
TEST(Disagreement, AboutSeedsIsRepaired) {
  on_ranks(3, [](dist::Communicator& communicator) {
    std::vector<at::Tensor> reference;
    for (const std::string& mode : all_modes()) {
      SessionOptions options;
      if (reference.empty()) reference = SingleProcessReference(options).parameters();
      options.seed += static_cast<std::uint64_t>(communicator.rank());
      EXPECT_TRUE(same_bits(Session(communicator, mode, options).weights(), reference)) << mode;
    }
  });
}

// A branch that only one rank takes: under stage 3 a unit is gathered by all ranks or by none.
TEST(Disagreement, AboutWhichUnitsRun) {
  const auto train = [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, with_parts("aa"));
    if (communicator.rank() == 1) session.model().stop_after(1);
    for (int s = 0; s < 2; ++s) session.step(s);
    return session.weights();
  };
  on_ranks(2, [&](dist::Communicator& communicator) {
    const std::vector<at::Tensor> reference = train(communicator, "ddp");
    for (const std::string& mode : all_modes()) {
      if (gathers_by_unit(mode)) continue;
      EXPECT_TRUE(same_bits(train(communicator, mode), reference)) << mode;
    }
  });
  for (const std::string mode : {"zero3", "tensor_zero3", "engine3"}) {
    SCOPED_TRACE(mode);
    const auto exits =
        ranks_ended({.timeout = std::chrono::seconds(2)},
                    [&](dist::Communicator& communicator) { train(communicator, mode); });
    expect_errors(exits,
                  ::testing::ContainsRegex("broadcast|reduce|gather|order of units|no answer"));
  }
}

// Units of one size in different orders: without the unit in the fingerprint of a gather, ranks of
// chapters 03 and 04 would take each other's parameters.
TEST(Disagreement, AboutTheOrderOfEqualUnits) {
  struct Two : nn::Model {
    struct Layer : TestUnit {
      at::Tensor apply_to(const at::Tensor& x, const at::Tensor& weight) {
        return run([&] { return x.matmul(weight).tanh(); });
      }
    };
    Two() {
      for (const char* const name : {"a", "b"}) {
        units.push_back(register_module(name, std::make_shared<Layer>()));
        weights.push_back(units.back()->add("weight", {6, 6}));
      }
    }
    at::Tensor loss(const data::Batch& batch) override { return predict(batch).square().mean(); }
    at::Tensor predict(const data::Batch& batch) override {
      return run([&] {
        at::Tensor x = batch.inputs;
        for (const std::size_t u : {first, 1 - first}) x = units[u]->apply_to(x, weights[u]);
        return x;
      });
    }
    std::vector<std::shared_ptr<Layer>> units;
    std::vector<at::Tensor> weights;
    std::size_t first = 0;
  };
  for (const std::string mode : {"zero3", "tensor_zero3", "engine3"}) {
    SCOPED_TRACE(mode);
    const auto exits = ranks_ended({}, [&](dist::Communicator& communicator) {
      Two model;
      nn::SeededValues values(1);
      nn::initialize_parameters(model, values);
      const auto strategy = make_strategy(mode, {model, communicator, optim::adamw(), nullptr, ""});
      model.first = communicator.rank() == 1 ? 1 : 0;
      strategy->backward(strategy->forward({.inputs = at::ones({2, 6}, at::kDouble)}));
      strategy->finish_backward();
    });
    expect_errors(exits, ::testing::ContainsRegex("rank 0 (is in .*unit 'a'|has a)"));
  }
}

}  // namespace
}  // namespace zero::testing
