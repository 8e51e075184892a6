// What a program may get wrong in a call is an error on all ranks that names it, and neither a
// crash nor a wrong result: faults in a step, engines that cannot be made, calls at a wrong time,
// and ranks that call different functions.

#include <ATen/ops/complex.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One rank of a run in which something goes wrong.
struct Trial {
  bool on(int rank) const { return run.rank == rank; }
  bool step() { return run.step(next++); }
  train::Strategy& strategy() { return run.engine.strategy(); }
  const at::Tensor& parameter(std::size_t i) { return strategy().list().parameters[i].tensor; }
  data::Batch batch(int number, std::int64_t loss_terms = 4) const {
    data::Batch batch = run.toy.batch(run.rank, number);
    batch.loss_terms = loss_terms;
    return batch;
  }
  data::Batch batch_with_nan(int number) const {
    data::Batch bad = batch(number);
    if (on(1)) bad.inputs[0][0] = std::nanf("");
    return bad;
  }
  void set_learning_rate(double rate) { strategy().optimizer().set_learning_rate(rate); }
  // Ends what a program may have done wrong.
  void heal() {
    is_healed = true;
    run.make_gradient_infinite(false);
    set_learning_rate(1e-3);
    for (const nn::Parameter& p : strategy().list().parameters) p.tensor.requires_grad_(true);
  }

  EngineRun run;
  int next = 0;           // the first micro-batch that has not counted
  at::Tensor early = {};  // the loss of a forward before the first update
  bool is_healed = false;
};

using Action = std::function<void(Trial&)>;
using RankRule = std::function<bool(int rank)>;

// In which steps a fault is tried, and what a program does afterwards.
struct FaultPlace {
  EngineConfig config = {};
  std::set<int> stages = {0, 1, 2, 3};
  int counted = 0;  // micro-batches of the step before the fault
  bool gives_up = false;
};

const EngineConfig kTwo{.accumulation_steps = 2};
const FaultPlace kStepOfTwo{.config = kTwo}, kSecondOfTwo{.config = kTwo, .counted = 1};

// A fault in the second step of a run.
struct Case {
  std::string name;
  Action call;
  std::vector<std::string> words = {};  // of its error, with {last} rank and {all}; none: no error
  FaultPlace where = {};
};

const RankRule kEveryRank = [](int) { return true; }, kRank1 = [](int rank) { return rank == 1; };

Action infinite_gradient(const RankRule& culprit) {
  return [=](Trial& t) {
    t.run.make_gradient_infinite(culprit(t.run.rank));
    EXPECT_FALSE(t.run.step(t.next));
  };
}

// A backward of another loss than that of a forward, on one rank or (-1) on all.
Case bad_loss(
    const char* name, const std::string& what, int rank,
    const std::function<at::Tensor(const at::Tensor& loss, const at::Tensor& early)>& bad) {
  const auto call = [=](Trial& t) {
    const at::Tensor loss = t.run.forward(t.next);
    t.run.engine.backward(rank < 0 || t.on(rank) ? bad(loss, t.early) : loss);
  };
  const std::string ranks = rank < 0 ? "{all}" : fmt::format("rank {}", rank);
  return {name, call, {"backward() of a loss " + what + ranks}};
}
const std::string kNoLoss = "that is not one real number with a gradient on ";
const std::string kOldLoss = "whose forward() came before the last update, on ";

// Between the backward() of a step and step().
Action zero_grad(const RankRule& culprit) {
  return [=](Trial& t) {
    t.run.engine.backward(t.run.forward(t.next));
    if (culprit(t.run.rank)) t.run.toy.model->zero_grad();
    t.run.engine.step();
  };
}
const std::string kWasReset = "the gradient of parameter 'layers.0.linear.weight' was set or reset";

Action freezing(std::size_t index) {
  return [=](Trial& t) {
    if (t.on(1)) t.parameter(index).requires_grad_(false);
    t.run.step(t.next);
  };
}

std::string from_zero(const std::string& what) {
  return "the optimizer's " + what + "; it must be a number from 0";
}

const std::vector<Case> kCases = {
    {"AnInfiniteGradientOfOneRank",
     infinite_gradient(kRank1),
     {"step 1: the gradient of 'layers.0.linear.bias' is infinite or NaN on rank 1; no rank has "
      "changed its weights"}},
    {"AnInfiniteGradientOfAllRanksThatWouldBeClipped",
     infinite_gradient(kEveryRank),
     {"'layers.0.linear.bias' is infinite or NaN on {all};"},
     {.config = {.clip_norm = 1}}},
    {"AnInfiniteGradientThatSkipsTheStep",
     infinite_gradient(kRank1),
     {},
     {.config = {.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip}}},
    {"AnOverflowAtALossScaleOfOne",
     infinite_gradient(kRank1),
     {"infinite or NaN on rank 1 at", "loss scale of 1"},
     {.config = {.loss_scale = {.initial = 1}}}},
    {"AnOverflowAtALossScaleOfOneInFloat32",
     infinite_gradient(kRank1),
     {"infinite or NaN on rank 1 at", "loss scale of 1"},
     {.config = {.reduce_in_float32 = true, .loss_scale = {.initial = 1}}}},
    // Every average is finite when it is made. The first micro-batch has nearly all loss terms, so
    // in the end the sum counts nearly four times.
    {"AnAverageThatOverflowsAsItsLossTermsAreKnown",
     [](Trial& t) {
       t.strategy().passes().observe_gradients([&t](std::size_t i, const at::Tensor& gradient) {
         if (i == 1) gradient.detach().fill_(t.on(0) ? 3e38F : 0);
       });
       for (int m = 4; m < 8; ++m) t.run.step(t.batch(m, m == 4 ? 1000 : 1));
     },
     {"step 1", "'layers.0.linear.bias' is infinite or NaN"},
     {.config = {.accumulation_steps = 4}}},
    {"ALossThatIsNotFinite",
     [](Trial& t) {
       t.run.step(t.batch_with_nan(2));
       t.run.step(3);
     },
     {"step 1: the loss is infinite or NaN on rank 1; no rank has", "a mean over no label is NaN"},
     kStepOfTwo},
    {"ALossThatIsNotFiniteInAStepThatIsGivenUp",
     [](Trial& t) { t.run.step(t.batch_with_nan(2)); },
     {},
     {.config = kTwo, .gives_up = true}},
    // Another one may take its place.
    {"ABatchThatDoesNotFit",
     [](Trial& t) {
       data::Batch bad = t.batch(9);
       bad.targets = bad.targets.narrow(1, 0, 1);
       forward_batch(t.run.engine, bad);
     },
     {"targets"},
     kSecondOfTwo},
    {"ANegativeNumberOfLossTerms",
     [](Trial& t) { forward_batch(t.run.engine, t.batch(1, -1)); },
     {"a batch with -1 loss terms"}},
    {"LossTermsAfterABatchThatHasNone",
     [](Trial& t) {
       const data::Batch silent = t.batch(2);
       t.run.engine.backward(
           t.run.engine.forward([&] { return data::loss_of(*t.run.toy.model, silent); }));
       t.run.step(t.batch(2, 1));
     },
     {"micro-batch 2 of the step has loss terms on rank", "in all batches"},
     {.config = kTwo, .gives_up = true}},
    // At stage 3 ranks gather in different functions then, which CallMismatch is about.
    {"ALossOfItsOwnBesideLossTerms",
     [](Trial& t) {
       const data::Batch batch = t.batch(1);
       t.run.engine.backward(t.on(1) ? data::loss_of(*t.run.toy.model, batch)
                                     : forward_batch(t.run.engine, batch));
     },
     {"the loss of micro-batch 1 on rank 1 was not computed from what Engine::forward() returned",
      "leave loss_terms out"},
     {.stages = {0, 1, 2}}},
    {"ALossOfItsOwnAfterLossTerms",
     [](Trial& t) { t.run.engine.backward(data::loss_of(*t.run.toy.model, t.batch(3))); },
     {"the loss of micro-batch 2 on {all} was"},
     kSecondOfTwo},
    bad_loss("NoLoss", kNoLoss, 0, [](auto&, auto&) { return at::Tensor(); }),
    bad_loss("ALossWithoutAGraph", kNoLoss, 0, [](auto& loss, auto&) { return loss.detach(); }),
    bad_loss("ALossOfTwoNumbers", kNoLoss, 0, [](auto& loss, auto&) { return loss.expand({2}); }),
    bad_loss("AComplexLoss", kNoLoss, 1,
             [](auto& loss, auto&) { return at::complex(loss, at::zeros({})); }),
    bad_loss("AnOldLoss", kOldLoss, -1, [](auto&, auto& early) { return early; }),
    bad_loss("AnOldLossOfOneRank", kOldLoss, 1, [](auto&, auto& early) { return early; }),
    bad_loss("TwiceAnOldLoss", kOldLoss, -1, [](auto&, auto& early) { return early * 2; }),
    bad_loss("ASumWithAnOldLoss", kOldLoss, -1,
             [](auto& loss, auto& early) { return loss + early; }),
    {"AStepWithoutABackward",
     [](Trial& t) { t.run.engine.step(); },
     {"step() before the engine's backward()"},
     kStepOfTwo},
    {"OneBackwardTooMany",
     [](Trial& t) {
       while (t.next < 4) t.run.engine.backward(t.run.forward(t.next++));
       const std::string said = error_of([&] { t.run.engine.backward(t.early); });
       EXPECT_TRUE(t.run.engine.step());
       throw Error(said);
     },
     {"backward() number 3 of a step of 2 micro-batches", "backward(main + aux)"},
     kStepOfTwo},
    {"AReleaseAfterABackward",
     [](Trial& t) {
       t.run.engine.backward(t.run.forward(t.next++));
       t.run.engine.release();
     },
     {"release() in the middle of a step"},
     kStepOfTwo},
    {"AReleaseBetweenMicroBatches",
     [](Trial& t) { t.run.engine.release(); },
     {"release() in the middle of a step"},
     kSecondOfTwo},
    // It would call itself until the stack is full.
    {"AStepInTheCallbackOfAStep",
     [](Trial& t) {
       t.run.engine.on_step([&t](const StepMetrics&) {
         if (!t.is_healed) t.run.step(9);
       });
       t.step();
     },
     {"the callback of a step: rank 0: backward() in the callback"}},
    {"ZeroGradOfAllRanks",
     zero_grad(kEveryRank),
     {kWasReset + " on {all} between backward() and step()", "give_up_step()"},
     {.stages = {1, 2, 3}}},
    {"ZeroGradOfOneRank",
     zero_grad(kRank1),
     {kWasReset + " on rank 1 between backward() and step()", "give_up_step()"},
     {.stages = {1, 2, 3}}},
    // As an optimizer without gradients.
    {"ZeroGradOfAllRanksOfWholeGradients", zero_grad(kEveryRank), {}, {.stages = {0}}},
    {"ZeroGradOfOneRankOfWholeGradients",
     zero_grad(kRank1),
     {"what was done to gradients between backward() and step()",
      "rank 1 has 'layers.0.linear.weight' reset"},
     {.stages = {0}}},
    {"ZeroGradBetweenMicroBatches",
     [](Trial& t) {
       if (t.on(0)) t.run.toy.model->zero_grad();
       t.run.step(t.next);
     },
     {"was set or reset on rank 0 between backward() and step()"},
     {.config = kTwo, .counted = 1, .gives_up = true}},
    {"FreezingBetweenMicroBatches",
     freezing(2),
     {"parameter 'layers.1.linear.weight' was frozen or unfrozen",
      "on rank 1 between two micro-batches of a step"},
     kSecondOfTwo},
    {"FreezingOnOneRank",
     freezing(0),
     {"ranks disagree about which parameters are trained",
      "rank 1 has parameter 'layers.0.linear.weight' frozen"}},
    // Set before step(), as a scheduler does.
    {"LearningRatesThatDiffer",
     [](Trial& t) {
       t.run.engine.backward(t.run.forward(t.next));
       t.set_learning_rate(t.on(t.strategy().communicator().size() - 1) ? 0.02 : 0.01);
       t.run.engine.step();
     },
     {"ranks disagree about the optimizer's settings: rank 0 has learning_rate 0.01 in group 0, "
      "rank {last} has learning_rate 0.02 in group 0"}},
    {"ALearningRateThatIsNoNumber",
     [](Trial& t) { t.set_learning_rate(kNan); },
     {from_zero("learning_rate is nan")}},
    {"ANegativeLearningRate",
     [](Trial& t) { t.strategy().optimizer().set_learning_rates({-1}); },
     {from_zero("learning_rate is -1")}},
    {"APenaltyOnAGradientWhereParametersAreSharded",
     [](Trial& t) {
       const at::Tensor x = t.batch(t.next).inputs.requires_grad_();
       t.run.engine.backward(t.run.engine.forward([&] {
         const at::Tensor y = t.run.toy.model->predict(x).sum();
         return torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0].square().mean();
       }));
     },
     {"create_graph runs through ", "needs stages 0 to 2"},
     {.stages = {3}, .gives_up = true}},
    {"AUnitThatIsNotThere",
     [](Trial& t) { train::UnshardedParameters(t.strategy(), 99); },
     {"there is no unit 99: the model has "}},
};

// Whenever a step has ended, the weights are those of a run that never had the fault.
void expect_no_trace(dist::Communicator& communicator, const Case& fault, int stage) {
  EngineConfig config = fault.where.config;
  config.stage = stage;
  const bool is_half = config.loss_scale.initial > 0;
  const auto optimizer = is_half ? optim::with_master_weights(optim::adamw()) : optim::adamw();
  const auto dtype = is_half ? at::kHalf : at::kFloat;
  EngineRun undisturbed(communicator, config, optimizer, dtype);
  Trial t{.run = {communicator, config, optimizer, dtype}};
  auto expect_same = [&, done = 0]() mutable {
    while (done < t.next) undisturbed.step(done++);
    EXPECT_TRUE(same_bits(t.run.weights(), undisturbed.weights()));
  };
  const int of_step = static_cast<int>(config.accumulation_steps), ranks = communicator.size();
  t.early = t.run.forward(99);
  while (t.next < of_step + fault.where.counted) t.step();
  std::vector<std::string> words;
  for (const std::string& word : fault.words) {
    words.push_back(fmt::format(fmt::runtime(word), fmt::arg("last", ranks - 1),
                                fmt::arg("all", ranks == 2 ? "ranks 0, 1" : "ranks 0, 1, 2")));
  }
  const auto call = [&] { fault.call(t); };
  if (words.empty()) {
    EXPECT_EQ(error_of(call), "");
  } else {
    expect_error(call, words);
  }
  expect_same();
  t.heal();
  if (fault.where.gives_up) {
    t.run.engine.give_up_step();
    t.next = of_step;
  }
  while (t.next < 3 * of_step) {
    const bool updates = (t.next + 1) % of_step == 0;
    EXPECT_EQ(t.step(), updates);
  }
  expect_same();
  const bool skips = config.on_nonfinite_gradient == train::OnNonfiniteGradient::kSkip;
  EXPECT_EQ(t.run.engine.skipped_steps(), skips ? 1 : 0);
  if (!words.empty() || skips) {
    EXPECT_EQ(t.run.engine.steps(), 3);
  }
}

class Refusals : public ::testing::TestWithParam<std::tuple<int, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Refusals,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Range<std::size_t>(0, kCases.size())),
                         [](const auto& info) {
                           return fmt::format("N{}_{}", std::get<0>(info.param),
                                              kCases[std::get<1>(info.param)].name);
                         });

TEST_P(Refusals, LeaveNoTrace) {
  const auto& [ranks, which] = GetParam();
  on_all_stages(ranks, [&fault = kCases[which]](dist::Communicator& communicator, int stage) {
    if (fault.where.stages.contains(stage)) expect_no_trace(communicator, fault, stage);
  });
}

TEST(Refusals, OfEnginesThatCannotBeMade) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto refused = [&](const EngineConfig& config, const optim::OptimizerFactory& optimizer,
                             const std::string& why) {
      expect_error([&] { EngineRun(communicator, config, optimizer); }, {why});
    };
    for (const double norm : {-1.0, kNan, 1 / 0.0}) {
      refused({.clip_norm = norm}, optim::adamw(), "it must be a norm, or 0 for no clipping");
    }
    refused({.accumulation_steps = 0}, optim::adamw(), "a step of 0 micro-batches; 1 is the least");
    refused({}, optim::adamw({.learning_rate = -1}), from_zero("learning_rate is -1"));
    refused({}, optim::adamw({.learning_rate = kNan}), from_zero("learning_rate is nan"));
    refused({}, optim::adamw({.learning_rate = 1 / 0.0}), from_zero("learning_rate is inf"));
    refused({}, optim::adamw({.beta1 = 1}), from_zero("beta1 is 1") + " to below 1");
    refused({}, optim::adamw({.beta2 = -0.5}), from_zero("beta2 is -0.5") + " to below 1");
    refused({}, optim::adamw({.epsilon = -1}), from_zero("epsilon is -1"));
    refused({}, optim::adamw({.weight_decay = kNan}), from_zero("weight_decay is nan"));
    const std::string none = "there is no optimizer: the function that makes it returned none";
    refused({}, {}, none);
    refused(
        {}, [](const auto&) { return std::unique_ptr<optim::Optimizer>(); }, none);
    refused(
        {}, [](const auto&) { return optim::wrap(nullptr); }, "the pointer is null");
  });
}

TEST(Refusals, OfCallsInAForward) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const TestFolder folder;
    for (const int stage : {0, 3}) {
      torch::nn::Linear net(3, 3);
      Engine engine(*net, communicator, optim::adamw(), {.stage = stage});
      const auto loss = [&] { return net->forward(at::ones({2, 3})).sum(); };
      const at::Tensor earlier = engine.forward(loss);
      const std::vector<std::pair<const char*, std::function<void()>>> calls = {
          {"forward", [&] { engine.forward(loss); }},
          {"evaluate", [&] { engine.evaluate(loss); }},
          {"backward", [&] { engine.backward(earlier); }},
          {"save", [&] { engine.save(folder.path()); }},
          {"load", [&] { engine.load(folder.path()); }},
          {"release", [&] { engine.release(); }},
          {"step", [&] { engine.step(); }}};
      for (const auto& [name, call] : calls) {
        // step() has something to update with.
        if (name == std::string("step")) engine.backward(engine.forward(loss));
        const auto inside = [&, &call = call] {
          call();
          return loss();
        };
        expect_error([&] { engine.forward(inside); },
                     {std::string(name) + "() in the function that forward() runs"});
      }
      EXPECT_TRUE(engine.step());
    }
  });
}

TEST(Refusals, OfCallsAfterRelease) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const TestFolder folder;
    EngineRun run(communicator, {});
    run.step(0);
    run.engine.release();
    expect_error([&] { run.engine.save(folder.path()); }, {"save() after release()"});
    expect_error([&] { run.engine.load(folder.path()); }, {"load() after release()"});
    expect_error([&] { run.engine.load_weights(safetensors::NamedTensors()); },
                 {"load_weights() after release()"});
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  });
}

// Ranks that call different functions: each hears of it soon, with both names, and not when the
// time limit is over.
const std::map<std::string, std::function<void(EngineRun& run, const std::string& folder)>> kCalls =
    {{"Engine::save", [](auto& run, auto& folder) { run.engine.save(folder); }},
     {"Engine::forward", [](auto& run, auto&) { run.step(1); }},
     {"Strategy::unshard",
      [](auto& run, auto&) { train::UnshardedParameters(run.engine.strategy(), 0); }},
     {"Engine::release", [](auto& run, auto&) { run.engine.release(); }},
     {"Engine::evaluate",
      [](auto& run, auto&) {
        run.engine.evaluate([&] { return run.toy.model->predict(run.toy.batch(0, 1).inputs); });
      }},
     {"Engine::on_step", [](auto& run, auto&) { run.engine.on_step([](const StepMetrics&) {}); }},
     {"io::state_dict", [](auto& run, auto&) { io::state_dict(run.engine.strategy()); }},
     {"io::load_weights",
      [](auto& run, auto&) { run.engine.load_weights(safetensors::NamedTensors()); }}};

using NamesOfCalls = std::pair<const char*, const char*>;  // of rank 0 and of the others
class CallMismatch : public ::testing::TestWithParam<std::tuple<int, const char*, NamesOfCalls>> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks, CallMismatch,
    ::testing::Combine(::testing::Values(2, 3), ::testing::Values("auto", "tcp"),
                       ::testing::Values(NamesOfCalls{"Engine::save", "Engine::forward"},
                                         NamesOfCalls{"Strategy::unshard", "Engine::forward"},
                                         NamesOfCalls{"Engine::evaluate", "Engine::forward"},
                                         NamesOfCalls{"Engine::on_step", "Engine::forward"},
                                         NamesOfCalls{"io::state_dict", "Engine::forward"},
                                         NamesOfCalls{"io::load_weights", "Engine::forward"},
                                         NamesOfCalls{"Engine::save", "Engine::release"},
                                         NamesOfCalls{"Engine::release", "Strategy::unshard"})));

TEST_P(CallMismatch, IsSaidOnAllRanksWithBothCalls) {
  const auto& [ranks, transport, names] = GetParam();
  const auto& [of_rank_0, of_others] = names;
  const TestFolder folder;
  ::setenv("ZERO_TRANSPORT", transport, /*overwrite=*/1);
  const auto ends = ranks_ended(
      {.world_size = ranks, .timeout = std::chrono::minutes(5)}, [&](dist::Communicator& c) {
        EngineRun run(c, {.stage = 3});
        run.step(0);
        kCalls.at(c.rank() == 0 ? of_rank_0 : of_others)(run, folder.path() / "checkpoint");
      });
  ::unsetenv("ZERO_TRANSPORT");
  expect_errors(ends, AllOf(HasSubstr(of_rank_0), HasSubstr(of_others)));
}

}  // namespace
}  // namespace zero::testing
