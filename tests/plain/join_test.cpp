// Engine::join(): ranks whose data ends earlier than that of others, beside one process that sees
// the batches of all ranks, in rank order.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/split_engine.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/optim/norm.hpp>
#include <zero/optim/weight_average.hpp>
#include <zero/train/loop/step.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using ::testing::AllOf, ::testing::HasSubstr, ::testing::Not;

constexpr auto kStages = {0, 1, 2, 3};

// Micro-batches of each rank, and how steps are made of them.
struct Uneven {
  std::vector<int> batches;
  int accumulation = 1;
  double clip_norm = 0;

  int ranks() const { return static_cast<int>(batches.size()); }
  int longest() const { return *std::ranges::max_element(batches); }
  std::vector<int> live(int number) const {
    std::vector<int> live;
    for (int r = 0; r < ranks(); ++r) {
      if (number < batches[static_cast<std::size_t>(r)]) live.push_back(r);
    }
    return live;
  }
  EngineConfig config(int stage) const {
    return {
        .overlap = {.stage = stage}, .accumulation_steps = accumulation, .clip_norm = clip_norm};
  }
};

// One process that has the batches of all ranks.
struct Alone {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::function<at::Tensor(int rank, int number)> loss;
  std::function<double(int rank, int number)> terms = [](int, int) { return 1; };

  void train(const Uneven& data) {
    for (int first = 0; first < data.longest(); first += data.accumulation) step(data, first);
  }

  void step(const Uneven& data, int first) {
    const int end = std::min(first + data.accumulation, data.longest());
    double expected = 0, all = 0;
    for (int number = first; number < end; ++number) {
      for (const int r : data.live(number)) all += terms(r, number);
      if (number == first) expected = all * data.accumulation;
    }
    std::vector<at::Tensor> sums(parameters.size());
    for (int r = 0; r < data.ranks(); ++r) {
      for (int number = first; number < std::min(end, data.batches[static_cast<std::size_t>(r)]);
           ++number) {
        train::weighted_loss(loss(r, number), terms(r, number), expected, data.ranks()).backward();
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor mine = std::exchange(parameters[i].mutable_grad(), at::Tensor());
        if (mine.defined()) sums[i] = sums[i].defined() ? sums[i] + mine : mine;
      }
    }
    std::vector<double> squares;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!sums[i].defined()) continue;
      at::Tensor& average = parameters[i].mutable_grad() = sums[i] / data.ranks();
      if (expected != all) average.mul_(expected / all);
      squares.push_back(optim::squared_norm(average));
    }
    const auto norm = static_cast<float>(optim::norm_from_squares(squares));
    for (const at::Tensor& p : parameters) {
      if (data.clip_norm > 0 && p.grad().defined()) {
        p.grad().mul_(optim::clip_coefficient(norm, data.clip_norm));
      }
    }
    optimizer->step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
  }
};

Alone plain_alone(const PlainModule& made) {
  return {.parameters = made.module->parameters(),
          .optimizer = wrapped_adamw(made.module->parameters()),
          .loss = [loss = made.loss](int rank, int number) {
            at::manual_seed(100 * number + rank);
            return loss();
          }};
}

template <typename Run>
void train(Run& run, const Uneven& data) {
  const int mine = data.batches[static_cast<std::size_t>(run.rank)];
  for (int number = 0; number < mine; ++number) run.step(number);
  run.engine.join();
}

struct Case {
  std::string name;
  Uneven data;
};

// At stage 3 each rank needs a batch.
const std::vector<Case> kCases = {
    {"OneRank", {{3}}},
    {"OneRankInAStep", {{5}, /*accumulation=*/2}},
    {"TheSecondEnds", {{3, 1}}},
    {"TheFirstEnds", {{1, 4}, /*accumulation=*/1, /*clip_norm=*/0.1}},
    {"InAStep", {{7, 4}, /*accumulation=*/3}},
    {"AllInAStep", {{3, 5}, /*accumulation=*/2, /*clip_norm=*/0.1}},
    {"ThreeRanks", {{2, 3, 1}, /*accumulation=*/1, /*clip_norm=*/0.1}},
    {"ThreeRanksInAStep", {{5, 1, 4}, /*accumulation=*/3}},
    {"FourRanks", {{1, 2, 4, 3}}},
    {"FourRanksInAStep", {{6, 3, 4, 1}, /*accumulation=*/2, /*clip_norm=*/0.1}}};

class Join : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Data, Join, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Join, HasTheBitsOfOneProcessThatSeesAllBatches) {
  const Uneven& data = GetParam().data;
  on_all_stages(data.ranks(), [&](dist::Communicator& communicator, int stage) {
    for (const PlainCase& plain : plain_cases()) {
      SCOPED_TRACE(plain.name);
      const PlainModule made = PlainRun::make(plain.name);
      Alone alone = plain_alone(made);
      PlainRun run(communicator, plain.name, data.config(stage));
      train(run, data);
      alone.train(data);
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
    }
  });
}

// With units of its own, and as many loss terms as a batch has samples.
TEST_P(Join, WeighsBatchesByTheirTermsInTwoEpochs) {
  const Uneven& data = GetParam().data;
  Uneven other = data;
  std::ranges::rotate(other.batches, other.batches.begin() + 1);
  on_all_stages(data.ranks(), [&](dist::Communicator& communicator, int stage) {
    const auto samples = [](int rank, int number) { return 2 + (rank + number) % 3; };
    Toy toy = Toy::alone();
    Alone alone{
        .parameters = parameters_of(*toy.model),
        .optimizer = optim::adamw()(parameters_of(*toy.model)),
        .loss = [&](int r, int n) { return toy.model->loss(toy.batch(r, n, samples(r, n))); },
        .terms = samples};
    EngineRun run(communicator, data.config(stage));
    std::int64_t steps = 0;
    for (const Uneven& epoch : {data, other}) {
      for (int n = 0; n < epoch.batches[static_cast<std::size_t>(run.rank)]; ++n) {
        run.step(run.toy.batch(run.rank, n, samples(run.rank, n)));
      }
      run.engine.join();
      alone.train(epoch);
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
      steps += (epoch.longest() + epoch.accumulation - 1) / epoch.accumulation;
      EXPECT_EQ(run.engine.steps(), steps);
    }
  });
}

// Options that change what is sent, and when. Each micro-batch by itself: another order of sums.
TEST(JoinWithOptions, HasTheSameBits) {
  const Uneven data{{5, 2, 4}, /*accumulation=*/2, /*clip_norm=*/0.1};
  on_ranks(data.ranks(), [&](dist::Communicator& communicator) {
    for (const bool each : {false, true}) {
      std::vector<at::Tensor> first;
      const auto expect_same = [&](const OverlapOptions& overlap) {
        EngineConfig config = data.config(overlap.stage);
        config.overlap = overlap;
        config.reduce_each_micro_batch = each;
        PlainRun run(communicator, "gpt2", config);
        train(run, data);
        if (first.empty()) first = run.weights();
        EXPECT_TRUE(same_bits(run.weights(), first)) << overlap.stage;
      };
      for (const int stage : kStages) expect_same({.stage = stage});
      expect_same({.stage = 3, .bucket_bytes = 1 << 10, .in_flight_bytes = 1 << 10});
      for (const int ahead : {0, 2}) expect_same({.stage = 3, .lookahead = ahead});
      expect_same({.stage = 3, .lookahead = kAutoLookahead});
      expect_same({.stage = 3, .whole_below = 2000});
      expect_same({.stage = 2, .defer_parameter_gather = true});
    }
  });
}

TEST(JoinInGroups, HasTheSameBitsAtAllStages) {
  const Uneven data{{3, 1, 2, 4}};
  on_ranks(data.ranks(), [&](dist::Communicator& communicator) {
    std::vector<at::Tensor> first;
    for (const int stage : {1, 2, 3}) {
      EngineConfig config = data.config(stage);
      config.more = R"({"shard_size": 2})";
      PlainRun run(communicator, "gpt2", config);
      train(run, data);
      if (first.empty()) first = run.weights();
      EXPECT_TRUE(same_bits(run.weights(), first)) << stage;
    }
  });
}

// The second copy of the parameters follows the updates of ranks in join(), too.
TEST(JoinInGroups, HasTheSameBitsWithSecondaryShards) {
  const Uneven data{{3, 1, 2, 4}};
  on_ranks(data.ranks(), [&](dist::Communicator& communicator) {
    EngineConfig with = data.config(3);
    with.more = R"({"secondary_shards": true, "group_size": 2})";
    PlainRun run(communicator, "gpt2", with), without(communicator, "gpt2", data.config(3));
    train(run, data);
    train(without, data);
    EXPECT_TRUE(same_bits(run.weights(), without.weights()));
  });
}

ZERO_TESTS_ON_RANKS(JoinOnRanks, 2, 3);

TEST_P(JoinOnRanks, ARankWithoutAnyBatchTakesPartBelowStage3) {
  Uneven data{std::vector<int>(static_cast<std::size_t>(GetParam()), 2)};
  data.batches.back() = 0;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      const PlainModule made = PlainRun::make("gpt2");
      Alone alone = plain_alone(made);
      PlainRun run(communicator, "gpt2", data.config(stage));
      train(run, data);
      alone.train(data);
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters)) << stage;
    }
  });
}

TEST_P(JoinOnRanks, AtStage3ARankWithoutAnyBatchIsAnErrorOnAll) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    PlainRun run(communicator, "gpt2", at_stage(3));
    if (communicator.rank() == 0) run.engine.join();
    run.step(0);
  });
  expect_errors(exits, AllOf(HasSubstr("Engine::join"), HasSubstr("Engine::forward")));
  EXPECT_THAT(exits[0].output, HasSubstr("join() before this rank's first forward()"));
}

// Ranks of its group notice, which is long before they would be waited for among all ranks: the
// time limit of a collective is longer than that of the test.
TEST(JoinInGroups, AtStage3ARankWithoutAnyBatchIsNoticedAtOnce) {
  const auto exits = ranks_ended({.world_size = 4, .timeout = std::chrono::minutes(10)},
                                 [](dist::Communicator& communicator) {
                                   EngineConfig config = at_stage(3);
                                   config.more = R"({"shard_size": 2})";
                                   PlainRun run(communicator, "gpt2", config);
                                   if (communicator.rank() == 0) run.engine.join();
                                   run.step(0);
                                 });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(exits[static_cast<std::size_t>(rank)].output,
                AllOf(HasSubstr("Engine::join"), HasSubstr("Engine::forward")));
  }
  EXPECT_THAT(exits[0].output, HasSubstr("join() before this rank's first forward()"));
  for (const auto& exit : exits) EXPECT_EQ(exit.exit_code, 1) << exit.rank;
}

TEST_P(JoinOnRanks, WithoutAnyBatchOnAllRanksDoesNothing) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "gpt2", at_stage(stage)), other(communicator, "gpt2", at_stage(0));
    run.engine.join();
    run.step(0);
    run.engine.join();
    run.engine.join();
    run.step(1);
    for (const int number : {0, 1}) other.step(number);
    EXPECT_EQ(run.engine.steps(), 2);
    EXPECT_TRUE(same_bits(run.weights(), other.weights()));
  });
}

// What a program sets and does between steps on ranks that have data, and in the callback on all.
TEST_P(JoinOnRanks, TakesLearningRatesAndCallsTheCallback) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    const auto place = folder / std::to_string(stage);
    const int rank = communicator.rank();
    EngineRun run(communicator, at_stage(stage)), even(communicator, at_stage(stage));
    std::vector<double> losses, rates;
    run.engine.on_step([&](const StepMetrics& metrics) {
      losses.push_back(metrics.loss);
      rates.push_back(metrics.learning_rates.at(0));
      EXPECT_EQ(metrics.loss_terms, 4 * (metrics.step == 0 ? communicator.size() : 1));
      if (metrics.step == 1) run.engine.save(place);
    });
    const auto rate = [](int number) { return 0.1 / (number + 1); };
    for (int number = 0; number < (rank == 0 ? 1 : 3); ++number) {
      // From the second step on only rank 1 has data.
      if (rank > 1 && number > 0) break;
      run.engine.strategy().optimizer().set_learning_rate(rate(number));
      run.step(number);
    }
    run.engine.join();
    EXPECT_EQ(rates, (std::vector{rate(0), rate(1), rate(2)}));
    const std::vector<double> all = dist::all_gather_scalars(communicator, losses);
    for (std::size_t k = 0; k < all.size(); ++k) EXPECT_EQ(all[k], losses[k % 3]);
    EXPECT_TRUE(even.engine.load(place));
    EXPECT_EQ(even.engine.steps(), 2);
  });
}

TEST_P(JoinOnRanks, WhereOneRankJoinsAndOthersDoSomethingElseAllHearOfIt) {
  for (const int stage : {1, 3}) {
    const TestFolder folder;
    const auto exits =
        ranks_ended({.world_size = GetParam()}, [&](dist::Communicator& communicator) {
          EngineRun run(communicator, at_stage(stage));
          run.step(0);
          communicator.rank() == 1 ? run.engine.join() : void(run.engine.save(folder.path()));
        });
    expect_errors(exits, AllOf(HasSubstr("Engine::save"),
                               HasSubstr(stage == 3 ? "Engine::forward" : "Engine::backward")));
  }
}

TEST_P(JoinOnRanks, ErrorsOfAStepAreThoseOfAllRanks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, at_stage(stage)), undisturbed(communicator, at_stage(stage));
    const bool goes_on = communicator.rank() == 1;
    run.step(0);
    expect_error(
        [&] {
          run.make_gradient_infinite(goes_on);
          goes_on ? void(run.step(1)) : run.engine.join();
        },
        {"is infinite or NaN on rank 1"});
    run.make_gradient_infinite(false);
    if (goes_on) run.step(1);
    run.engine.join();
    undisturbed.step(0);
    if (goes_on) undisturbed.step(1);
    undisturbed.engine.join();
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(JoinOnRanks, WithAveragedWeightsIsAnErrorOnAll) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, at_stage(stage), optim::with_weight_average(optim::adamw(), 0.9));
    run.step(0);
    expect_error([&] { run.engine.with_averaged_weights([&] { run.engine.join(); }); },
                 {"join() in with_averaged_weights()"});
  });
}

// Trains with an evaluation within the first step and one after it.
template <typename Run>
void train_and_evaluate(Run& run, const std::function<at::Tensor(int number)>& forward,
                        const std::function<at::Tensor()>& predict) {
  for (int number = 0; number < (run.rank == 0 ? 3 : 1); ++number) {
    const at::Tensor loss = forward(number);
    if (number == 0) run.engine.evaluate(predict);
    run.engine.backward(loss);
    run.engine.step();
    if (number == 0) run.engine.evaluate(predict);
  }
  run.engine.join();
  EXPECT_EQ(run.engine.steps(), 3);
}

// An evaluation in the last step of a rank is not a part of what it repeats.
TEST_P(JoinOnRanks, RepeatsTheStepAndNoEvaluation) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, at_stage(stage));
    const data::Batch batch = run.toy.batch(run.rank, 9);
    train_and_evaluate(
        run, [&](int number) { return run.forward(number); },
        [&] { return run.toy.model->predict(batch); });
    PlainRun plain(communicator, "gpt2", at_stage(stage));
    train_and_evaluate(
        plain, [&](int) { return plain.engine.forward(plain.made.loss); }, plain.made.loss);
  });
}

// A pass whose gathers and reductions depend on the state of the thread: two units also run without
// a graph, and two run again in backward, in one checkpoint.
struct Chain : torch::nn::Module {
  Chain() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(11, 11));
    register_module("layers", layers);
  }
  at::Tensor run(std::size_t layer, const at::Tensor& x) {
    return layers[layer]->as<torch::nn::Linear>()->forward(x).tanh();
  }
  at::Tensor loss() {
    const at::Tensor x = at::randn({4, 11});
    at::Tensor target;
    {
      const at::NoGradGuard no_grad;
      target = run(3, run(1, x));
    }
    const auto both = [this](const auto& in) { return run(2, run(1, in[0])); };
    return (run(3, nn::checkpoint(both, {run(0, x)})) - 2 * target).square().mean();
  }
  torch::nn::ModuleList layers;
};

struct ChainRun {
  ChainRun(dist::Communicator& communicator, int stage)
      : rank(communicator.rank()),
        engine(net, communicator, wrapped_adamw, at_stage(stage), nn::default_units(/*bytes=*/1)) {}
  static Chain made() {
    at::manual_seed(7);
    return Chain();
  }
  void step(int number) {
    at::manual_seed(100 * number + rank);
    engine.backward(engine.forward([this] { return net.loss(); }));
    engine.step();
  }
  Chain net = made();
  int rank;
  Engine engine;
};

TEST_P(JoinOnRanks, RepeatsWithAndWithoutAGraphAndInACheckpoint) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    std::vector<at::Tensor> first;
    for (const int stage : kStages) {
      ChainRun run(communicator, stage);
      train(run, {{3, 2, 4}});
      const std::vector<at::Tensor> weights = whole_weights(run.engine.strategy());
      if (first.empty()) first = weights;
      EXPECT_TRUE(same_bits(weights, first)) << stage;
    }
  });
}

// In the callback a rank without a batch is one like the others.
TEST_P(JoinOnRanks, EvaluatesInTheCallback) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    PlainRun run(communicator, "gpt2", at_stage(stage));
    std::vector<double> losses;
    run.engine.on_step([&](const StepMetrics&) {
      at::manual_seed(3);
      losses.push_back(run.engine.evaluate(run.made.loss).item<double>());
    });
    train(run, {std::vector<int>{3, 1, 2}});
    ASSERT_EQ(losses.size(), 3U);
    EXPECT_GT(losses[2], 0);
    const std::vector<double> all = dist::all_gather_scalars(communicator, losses);
    for (std::size_t k = 0; k < all.size(); ++k) EXPECT_EQ(all[k], losses[k % 3]);
  });
}

// The last step() of a rank may be left to join().
TEST_P(JoinOnRanks, TakesTheStepThatTheRankHasNotTaken) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    EngineRun run(communicator, at_stage(3)), other(communicator, at_stage(0));
    for (EngineRun* each : {&run, &other}) {
      each->step(0);
      each->engine.backward(each->forward(1));
      if (each == &other || communicator.rank() == 0) each->engine.step();
      each->engine.join();
    }
    EXPECT_TRUE(same_bits(run.weights(), other.weights()));
  });
}

// A program may call step() after each micro-batch, and join() does so after the last only.
TEST_P(JoinOnRanks, CompletesASaveBehind) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    const auto place = folder / std::to_string(stage);
    EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2});
    run.engine.on_step(
        [&](const StepMetrics&) { run.engine.save(place, {.keep = 9, .behind = true}); });
    run.steps(0, communicator.rank() == 0 ? 8 : 1);
    run.engine.join();
    run.engine.finish_save();
    EngineRun other(communicator, at_stage(stage));
    for (const char* older : {"step-000000001.json", "step-000000003.json", ""}) {
      EXPECT_TRUE(other.engine.load(place / older)) << older;
    }
    EXPECT_EQ(other.engine.steps(), 4);
    EXPECT_TRUE(same_bits(other.weights(), run.weights()));
  });
}

// Units as large, and a root that is small beside them.
struct Wide : torch::nn::Module {
  static constexpr std::int64_t kWidth = 256;
  Wide() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }
  at::Tensor loss() {
    at::Tensor x = at::randn({4, kWidth});
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x).tanh();
    return head(x).square().mean();
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};

TEST_P(JoinOnRanks, HoldsTheRootAndTwoUnitsBesideItsShardsAndNothingMoreAfterIt) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    Wide net;
    Engine engine(net, communicator, optim::adamw(), at_stage(3));
    const auto before = memory::snapshot()[memory::Category::kParameters];
    for (int number = 0; number < (communicator.rank() == 0 ? 4 : 2); ++number) {
      engine.backward(engine.forward([&] { return net.loss(); }));
      engine.step();
    }
    memory::reset_peaks();
    engine.join();
    const memory::Snapshot now = memory::snapshot();
    EXPECT_EQ(now[memory::Category::kParameters], before);
    const std::int64_t unit = 4 * Wide::kWidth * (Wide::kWidth + 1);
    const std::int64_t root = 4 * (Wide::kWidth + 1);
    const auto peak = now.peak[static_cast<std::size_t>(memory::Category::kParameters)];
    EXPECT_NEAR(static_cast<double>(peak - before), static_cast<double>(root + 2 * unit),
                static_cast<double>(unit) / 50);
  });
}

// A rank that computes nothing in join() says nothing of how long a unit computes.
TEST_P(JoinOnRanks, DoesNotShiftTheLookaheadThatIsChosen) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    Wide net;
    EngineConfig config = at_stage(3);
    config.overlap.lookahead = kAutoLookahead;
    Engine engine(net, communicator, optim::adamw(), config);
    const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    const auto slow = [&] {
      at::Tensor x = at::randn({4, Wide::kWidth});
      for (const auto& layer : *net.layers) {
        x = layer->as<torch::nn::Linear>()->forward(x).tanh();
        x.register_hook([wait](const at::Tensor&) { wait(); });
        wait();
      }
      return net.head(x).square().mean();
    };
    // Three steps are measured.
    for (int number = 0; number < (communicator.rank() == 1 ? 1 : 3); ++number) {
      engine.backward(engine.forward(slow));
      engine.step();
    }
    engine.join();
  });
  // A gather takes far less than a unit.
  EXPECT_THAT(exits[0].output,
              AllOf(HasSubstr("note: lookahead "), Not(HasSubstr("bandwidth is the limit"))));
}

TEST(JoinOnATensorAxis, HasTheSameBitsAtAllStages) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    std::vector<at::Tensor> first;
    for (const int stage : kStages) {
      SplitEngine run(axes, stage);
      train(run, {{1, 3}});
      EXPECT_EQ(run.engine.steps(), 3);
      const std::vector<at::Tensor> weights = whole_weights(run.engine.strategy());
      if (first.empty()) first = weights;
      EXPECT_TRUE(same_bits(weights, first)) << stage;
    }
  });
}

TEST(JoinOnATensorAxis, OfOneOfItsRanksIsAnErrorOnAll) {
  const auto exits = ranks_ended({.world_size = 4}, [](dist::Communicator& communicator) {
    const TwoAxes axes(communicator, 2);
    SplitEngine run(axes, /*stage=*/1);
    run.step(0);
    if (communicator.rank() == 0) run.engine.join();
    run.step(1);
    run.engine.join();
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(exits[static_cast<std::size_t>(rank)].output,
                AllOf(HasSubstr("Engine::join"), HasSubstr("Engine::forward")));
  }
  for (const auto& exit : exits) EXPECT_EQ(exit.exit_code, 1) << exit.rank;
}

}  // namespace
}  // namespace zero::testing
