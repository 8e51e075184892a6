// Weights that a program writes itself, where its ranks disagree or there is no scope around it.
// What is right to write, the programs of tests/fuzz do at any time and under every mode.

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/scripted_model.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/memory/storage.hpp>

namespace zero::testing {
namespace {

// One rank. Its model has the weights 'block0.scale', 'block1.scale' …
struct WritingRun {
  WritingRun(dist::Communicator& communicator, const EngineConfig& options)
      : rank(communicator.rank()),
        net(make_deferred<ScriptedModel>(ScriptedModelOptions{})),
        engine(*net, communicator, optim::adamw({.learning_rate = 0.02}), options,
               nn::default_units(), &values) {}
  data::Batch batch(int number) const {
    const auto seed = static_cast<std::uint64_t>(10 * number + rank);
    const at::Tensor inputs = random({4, 6}, seed, /*gradient=*/false, at::kFloat);
    return {.inputs = inputs, .targets = inputs.sin(), .loss_terms = inputs.size(0)};
  }
  void micro_batch(int number) { engine.backward(forward_batch(engine, batch(number))); }
  void step(int number) {
    micro_batch(number);
    EXPECT_TRUE(engine.step());
  }
  void with_whole_units(const std::function<void()>& action) {
    std::vector<std::unique_ptr<train::UnshardedParameters>> held;
    for (std::size_t u = 0; u < engine.strategy().list().units.size(); ++u) {
      held.push_back(std::make_unique<train::UnshardedParameters>(engine.strategy(), u));
    }
    const at::NoGradGuard no_grad;
    action();
  }
  // Happens in each forward of a block from now on.
  void in_forward(std::size_t block, const std::function<void()>& action) const {
    net->blocks[block]->inside = [=](const at::Tensor& x) {
      action();
      return x;
    };
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  nn::SeededValues values{4};
  std::shared_ptr<ScriptedModel> net;
  Engine engine;
};

void clamp_written(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  at::Tensor(weight).clamp_(-0.1, 0.1);
}

std::vector<EngineConfig> writing_options(int ranks) {
  std::vector<EngineConfig> all;
  for (const int stage : {0, 1, 2, 3}) all.push_back({.stage = stage});
  for (const int stage : {1, 2}) all.push_back({.stage = stage, .defer_parameter_gather = true});
  all.push_back({.stage = 3, .lookahead = 0, .whole_below = 100});
  all.push_back({.stage = 3, .bucket_bytes = 200, .lookahead = 2, .whole_below = 100});
  if (ranks == 2) all.push_back({.stage = 3, .shard_size = 1});
  all.push_back({.group_size = 1, .secondary_shards = true});
  return all;
}

// The ways on after a write: where weights are used or leave the engine.
enum class Next { kStep, kSave, kStateDict, kRelease };

void go_on(Engine& engine, Next next, const std::filesystem::path& folder) {
  if (next == Next::kStep) engine.step();
  if (next == Next::kSave) engine.save(folder / "wrong");
  if (next == Next::kStateDict) io::state_dict(engine.strategy());
  if (next == Next::kRelease) engine.release();
}

// What ranks write into a weight of the second block between two steps, and which ways on then say
// what.
struct WrongWrite {
  std::string name;
  std::function<void(WritingRun& run, const at::Tensor& weight)> happens;
  std::vector<Next> refused;
  std::string says;
  bool needs_whole = false;  // where the parameter is sharded the write itself is the error: below
};

std::vector<WrongWrite> wrong_writes() {
  using enum Next;
  std::vector<WrongWrite> all;
  // A difference is an error on all ranks. Without a step, too: what leaves would be a mixture.
  for (const auto& [all_write, hides] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    all.push_back({fmt::format("values differ, all write: {}, to data(): {}", all_write, hides),
                   [=](WritingRun& run, const at::Tensor& weight) {
                     run.with_whole_units([&] {
                       if (all_write || run.rank == 1) {
                         (hides ? weight.data() : weight).add_(run.rank);
                       }
                     });
                   },
                   {kSave, kStateDict, kRelease, kStep},
                   "ranks disagree about what the program has written into parameters"});
  }
  // By the rank that writes, on all of them.
  const auto clamp = [](WritingRun& run, const at::Tensor&) {
    if (run.rank == 1) clamp_written(run.net->blocks[1]->scale);
  };
  const auto clamp_before_a_scope = [=](WritingRun& run, const at::Tensor& weight) {
    clamp(run, weight);
    run.with_whole_units([] {});
  };
  const auto clamp_in_forward = [=](WritingRun& run, const at::Tensor& weight) {
    run.in_forward(1, [&run, clamp, weight] { clamp(run, weight); });
  };
  const char* const outside =
      "the program wrote into parameter 'block1.scale' outside of a scope: hold "
      "train::UnshardedParameters";
  all.push_back({"between steps", clamp, {kStep, kSave}, outside, true});
  all.push_back({"before a scope", clamp_before_a_scope, {kStep, kSave}, outside, true});
  all.push_back({"in forward", clamp_in_forward, {kStep, kSave}, outside});
  return all;
}

ZERO_TESTS_ON_RANKS(WrittenWeights, 2, 3);

// Until weights are loaded, which take the place of what was written.
TEST_P(WrittenWeights, ThatDifferOrAreOutsideOfAScopeAreRefusedOnAllRanks) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const EngineConfig& options : writing_options(communicator.size())) {
      WritingRun run(communicator, options);
      const at::Tensor& weight = run.net->blocks[1]->scale;
      run.engine.save(folder.path() / "right");
      for (const WrongWrite& wrong : wrong_writes()) {
        SCOPED_TRACE(wrong.name + ", " + base::text_of(options));
        run.step(0);
        if (wrong.needs_whole && memory::is_released(weight)) continue;
        wrong.happens(run, weight);
        for (const Next next : wrong.refused) {
          if (next == Next::kStep) run.micro_batch(1);
          run.net->blocks[1]->inside = {};
          expect_error([&] { go_on(run.engine, next, folder.path()); },
                       {wrong.says, "'block1.scale'"});
        }
        EXPECT_TRUE(run.engine.load(folder.path() / "right"));
      }
      run.step(0);
      communicator.barrier();
      if (run.rank == 0) std::filesystem::remove_all(folder.path() / "right");
      communicator.barrier();
    }
  });
}

// Quantized parameters: what is shown between steps are the weights themselves. In a pass it is
// what has arrived.
TEST_P(WrittenWeights, OfRoundedParametersCountBetweenSteps) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const bool secondary : {false, true}) {
      SCOPED_TRACE(secondary);
      const EngineConfig options =
          engine_config(fmt::format(R"({{"group_size": 1, "secondary_shards": {},
                                         "quantize_parameters": true, "quantization_block": 64}})",
                                    secondary));
      WritingRun run(communicator, options), same(communicator, options);
      std::vector<at::Tensor> expected;
      for (WritingRun* each : {&run, &same}) {
        each->step(0);
        each->micro_batch(2);  // secondary shards are made
      }
      for (at::Tensor& p : expected = run.weights()) p.clamp_(-0.1, 0.1);
      run.with_whole_units([&] {
        for (const at::Tensor& p : run.net->parameters()) clamp_written(p);
      });
      EXPECT_TRUE(same_bits(run.weights(), expected));
      // What is gathered next is what would be gathered from the written shards.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const train::ParameterShard mine = same.engine.strategy().placement(i).kept;
        if (mine.tensor.defined()) at::Tensor(mine.tensor).clamp_(-0.1, 0.1);
      }
      same.engine.strategy().passes().weights_changed();
      const auto loss = [&](WritingRun& each) {
        const at::NoGradGuard no_grad;
        return forward_batch(each.engine.strategy(), each.batch(9));
      };
      EXPECT_TRUE(at::equal(loss(run), loss(same)));

      WritingRun in_pass(communicator, options);
      in_pass.in_forward(2, [&] {
        const train::UnshardedParameters whole(
            in_pass.engine.strategy(),
            in_pass.engine.strategy().list().index_of(*in_pass.net->blocks[2]));
        clamp_written(in_pass.net->blocks[2]->scale);
      });
      in_pass.micro_batch(0);
      expect_error([&] { in_pass.engine.step(); },
                   {"wrote into parameter 'block2.scale' where it had rounded values"});
    }
  });
}

}  // namespace
}  // namespace zero::testing
