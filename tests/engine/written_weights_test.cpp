// Loops that write into weights themselves: a WGAN's clamp, a teacher that follows, a norm that is
// kept. The measure is the plain module in one process, with the batches of all ranks.

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

constexpr std::int64_t kWritingWidth = 13;
constexpr int kWritingBlocks = 3;

at::Tensor drawn_weights(at::IntArrayRef sizes, std::uint64_t seed,
                         at::ScalarType dtype = at::kFloat) {
  return (random(sizes, seed, /*gradient=*/false, at::kFloat) * 0.3).to(dtype);
}

// A plain module with a weight, a bias, and a frozen weight that follows the other one.
struct WritingLayer : torch::nn::Module {
  WritingLayer(std::uint64_t seed, at::ScalarType dtype)
      : weight(register_parameter("weight",
                                  drawn_weights({kWritingWidth, kWritingWidth}, seed, dtype))),
        bias(register_parameter("bias", drawn_weights({kWritingWidth}, seed + 50, dtype))),
        teacher(register_parameter("teacher", weight.detach().clone(), /*requires_grad=*/false)) {}
  at::Tensor weight, bias, teacher;
};

struct WritingBlock : nn::Unit {
  WritingBlock(std::uint64_t seed, at::ScalarType dtype)
      : layer(register_module("layer", std::make_shared<WritingLayer>(seed, dtype))) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      if (in_forward) in_forward();
      return x + (x.matmul(layer->weight) - x.matmul(layer->teacher) * 0.1 + layer->bias).tanh();
    });
  }
  std::shared_ptr<WritingLayer> layer;
  std::function<void()> in_forward;
};

struct WritingNet : BatchModel {
  explicit WritingNet(at::ScalarType dtype = at::kFloat)
      : scale(register_parameter("scale", drawn_weights({}, 90, dtype))),
        head(register_parameter("head", drawn_weights({kWritingWidth}, 91, dtype))) {
    for (int b = 0; b < kWritingBlocks; ++b) {
      const auto seed = static_cast<std::uint64_t>(b);
      blocks.push_back(
          register_module(fmt::format("block{}", b), std::make_shared<WritingBlock>(seed, dtype)));
    }
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      at::Tensor x = batch.inputs.to(head.scalar_type());
      for (const auto& block : blocks) x = block->forward(x);
      return x * head * scale;
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch).to(at::kFloat) - batch.targets).square().mean();
  }
  // For a write in the forward of block `b`: a scope, if an engine has the model.
  std::unique_ptr<train::UnshardedParameters> whole_block(std::size_t b) const {
    if (strategy == nullptr) return nullptr;
    return std::make_unique<train::UnshardedParameters>(*strategy, b + 1);
  }
  at::Tensor scale, head;
  std::vector<std::shared_ptr<WritingBlock>> blocks;
  train::Strategy* strategy = nullptr;
};

data::Batch writing_batch(int rank, int step) {
  const auto seed = static_cast<std::uint64_t>(100 * step + rank + 1000);
  return {.inputs = drawn_weights({4, kWritingWidth}, seed) * 3,
          .targets = drawn_weights({4, kWritingWidth}, seed + 50) * 9};
}

// What the loop does to the weights of a model, which are all whole.
struct Write {
  const char* name;
  std::function<void(WritingNet&)> apply;
};

void on_all_parameters(WritingNet& net, const std::function<void(at::Tensor&)>& action) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : net.parameters()) action(p);
}

void teacher_follows(WritingNet& net) {
  const at::NoGradGuard no_grad;
  for (const auto& block : net.blocks) {
    block->layer->teacher.mul_(0.75).add_(block->layer->weight, 0.25);
  }
}

void clamp_weight(WritingBlock& block) {
  const at::NoGradGuard no_grad;
  block.layer->weight.clamp_(-0.1, 0.1);
}

const Write kClamp{"clamp", [](WritingNet& net) {
                     on_all_parameters(net, [](at::Tensor& p) { p.clamp_(-0.1, 0.1); });
                   }};
// The version counter of a parameter does not show it, and a master weight must follow.
const Write kClampOfData{"clamp of data()", [](WritingNet& net) {
                           on_all_parameters(net,
                                             [](at::Tensor& p) { p.data().clamp_(-0.1, 0.1); });
                         }};
const Write kScale{
    "scale", [](WritingNet& net) { on_all_parameters(net, [](at::Tensor& p) { p.mul_(0.9); }); }};
const Write kPart{"copy of a part", [](WritingNet& net) {
                    const at::NoGradGuard no_grad;
                    net.blocks[1]->layer->weight[7].copy_(net.blocks[0]->layer->bias);
                  }};
// Inside the unit's own forward, as for a norm that is kept there.
const Write kInForward{"in forward", [](WritingNet& net) {
                         for (std::size_t b = 0; b < net.blocks.size(); ++b) {
                           net.blocks[b]->in_forward = [&net, b] {
                             const auto whole = net.whole_block(b);
                             clamp_weight(*net.blocks[b]);
                           };
                         }
                       }};
const std::vector<Write> kWrites = {
    kClamp, kClampOfData, {"teacher", teacher_follows}, kScale, kPart};

// When it does so in a step of two micro-batches.
enum class When { kBeforeForward, kBetweenMicroBatches, kAfterBackward, kAfterStep };
const std::vector<When> kWritingTimes = {When::kBeforeForward, When::kBetweenMicroBatches,
                                         When::kAfterBackward, When::kAfterStep};
constexpr int kWritingSteps = 2;

// Plays the loop: `micro_batch` of a number, `step`, `write`.
void play_writes(When when, const std::function<void(int)>& micro_batch,
                 const std::function<void()>& step, const std::function<void()>& write) {
  const auto at_time = [&](When now) {
    if (when == now) write();
  };
  for (int s = 0; s < kWritingSteps; ++s) {
    at_time(When::kBeforeForward);
    micro_batch(2 * s);
    at_time(When::kBetweenMicroBatches);
    micro_batch(2 * s + 1);
    at_time(When::kAfterBackward);
    step();
    at_time(When::kAfterStep);
  }
}

optim::OptimizerFactory writing_optimizer(at::ScalarType dtype) {
  const optim::OptimizerFactory adamw = optim::adamw({.learning_rate = 0.02});
  return dtype == at::kFloat ? adamw : optim::with_master_weights(adamw);
}

std::vector<at::Tensor> plainly_written(int ranks, const Write& write, When when,
                                        at::ScalarType dtype) {
  WritingNet net(dtype);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  PlainRanks plain(parameters, ranks, writing_optimizer(dtype));
  // The masters of a plain module do not see a write to data(): there it is made in place.
  const bool hides = write.name == kClampOfData.name && dtype != at::kFloat;
  play_writes(
      when,
      [&](int number) {
        plain.backward([&](int rank) { return net.loss(writing_batch(rank, number)) / 2; });
      },
      [&] { plain.step(); }, [&] { (hides ? kClamp : write).apply(net); });
  return parameters;
}

EngineConfig with_accumulation(EngineConfig config, std::int64_t steps) {
  config.accumulation_steps = steps;
  return config;
}

struct WritingRun {
  WritingRun(dist::Communicator& communicator, const EngineConfig& options,
             at::ScalarType dtype = at::kFloat, int accumulation_steps = 2)
      : rank(communicator.rank()),
        net(dtype),
        engine(net, communicator, writing_optimizer(dtype),
               with_accumulation(options, accumulation_steps)) {
    net.strategy = &engine.strategy();
  }

  void micro_batch(int number) {
    engine.backward(forward_batch(engine, writing_batch(rank, number)));
  }
  void with_whole_units(const std::function<void()>& action) {
    std::vector<std::unique_ptr<train::UnshardedParameters>> held;
    for (std::size_t u = 0; u < engine.strategy().list().units.size(); ++u) {
      held.push_back(std::make_unique<train::UnshardedParameters>(engine.strategy(), u));
    }
    action();
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  WritingNet net;
  Engine engine;
};

std::vector<at::Tensor> written_by_engine(dist::Communicator& communicator,
                                          const EngineConfig& options, const Write& write,
                                          When when, at::ScalarType dtype) {
  WritingRun run(communicator, options, dtype);
  play_writes(
      when, [&](int number) { run.micro_batch(number); }, [&] { EXPECT_TRUE(run.engine.step()); },
      [&] { run.with_whole_units([&] { write.apply(run.net); }); });
  return run.weights();
}

std::vector<EngineConfig> each_stage() {
  std::vector<EngineConfig> all;
  for (const int stage : {0, 1, 2, 3}) all.push_back({.stage = stage});
  return all;
}

// Options with the bits of the plain module.
std::vector<EngineConfig> writing_options(int ranks) {
  std::vector<EngineConfig> all = each_stage();
  for (const int stage : {1, 2}) all.push_back({.stage = stage, .defer_parameter_gather = true});
  all.push_back({.stage = 3, .lookahead = 0, .whole_below = 100});
  all.push_back({.stage = 3, .bucket_bytes = 200, .lookahead = 0});
  all.push_back({.stage = 3, .bucket_bytes = 200, .lookahead = 2, .whole_below = 100});
  if (ranks == 2) all.push_back(engine_config(R"({"stage": 3, "shard_size": 1})"));
  all.push_back(engine_config(R"({"secondary_shards": true, "group_size": 1})"));
  return all;
}

// Which writes are made when, and under which options. Of many the options take turns, because an
// engine for each of all would take minutes.
struct WriteCells {
  std::vector<Write> writes;
  std::vector<EngineConfig> options;
  std::vector<When> times = kWritingTimes;
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  bool take_turns = false;
  double tolerance = 0;
};

std::vector<WriteCells> write_cells(int ranks) {
  const std::vector<at::ScalarType> both = {at::kFloat, at::kBFloat16};
  if (ranks == 4) {  // groups of two ranks: secondary shards, and copies of the model states
    std::vector<EngineConfig> copies;
    for (const int stage : {1, 2, 3}) {
      copies.push_back({.stage = stage, .shard_size = 2});
    }
    // The sums of HSDP are those of a tree.
    return {{{kScale}, {engine_config(R"({"secondary_shards": true, "group_size": 2})")}},
            {.writes = {kScale}, .options = copies, .tolerance = 1e-5}};
  }
  std::vector<WriteCells> all = {{{kClampOfData}, each_stage(), kWritingTimes, both}};
  if (ranks == 1) return all;
  const std::vector<EngineConfig> options = writing_options(ranks);
  all.push_back({kWrites, options, kWritingTimes, both, /*take_turns=*/true});
  all.push_back({{kInForward}, options, {When::kBeforeForward}});
  return all;
}

void expect_plain_writes(dist::Communicator& communicator, const WriteCells& cells,
                         at::ScalarType dtype) {
  const std::size_t by = cells.take_turns ? cells.writes.size() : 1;
  for (std::size_t w = 0; w < cells.writes.size(); ++w) {
    for (const When when : cells.times) {
      const auto time = static_cast<std::size_t>(when);
      const auto expected = plainly_written(communicator.size(), cells.writes[w], when, dtype);
      for (std::size_t o = (w + time) % by; o < cells.options.size(); o += by) {
        SCOPED_TRACE(fmt::format("{}, time {}, {}, {}", cells.writes[w].name, time,
                                 base::text_of(cells.options[o]), c10::toString(dtype)));
        const auto weights =
            written_by_engine(communicator, cells.options[o], cells.writes[w], when, dtype);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(cells.tolerance == 0 ? identical(weights[i], expected[i])
                                           : close_to(weights[i], expected[i], cells.tolerance));
        }
      }
    }
  }
}

ZERO_TESTS_ON_RANKS(WritesOfAProgram, 1, 2, 3, 4);

TEST_P(WritesOfAProgram, LeaveTheWeightsOfThePlainModule) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const WriteCells& cells : write_cells(communicator.size())) {
      for (const at::ScalarType dtype : cells.dtypes) {
        expect_plain_writes(communicator, cells, dtype);
      }
    }
  });
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
                       const at::NoGradGuard no_grad;
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
    if (run.rank == 1) clamp_weight(*run.net.blocks[1]);
  };
  const auto clamp_before_a_scope = [=](WritingRun& run, const at::Tensor& weight) {
    clamp(run, weight);
    run.with_whole_units([] {});
  };
  const auto clamp_in_forward = [=](WritingRun& run, const at::Tensor& weight) {
    run.net.blocks[1]->in_forward = [&run, clamp, weight] { clamp(run, weight); };
  };
  const char* const outside =
      "the program wrote into parameter 'block1.layer.weight' outside of a scope: hold "
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
      WritingRun run(communicator, options, at::kFloat, /*accumulation_steps=*/1);
      const at::Tensor& weight = run.net.blocks[1]->layer->weight;
      run.engine.save(folder.path() / "right");
      for (const WrongWrite& wrong : wrong_writes()) {
        SCOPED_TRACE(wrong.name + ", " + base::text_of(options));
        run.micro_batch(0);
        EXPECT_TRUE(run.engine.step());
        if (wrong.needs_whole && memory::is_released(weight)) continue;
        wrong.happens(run, weight);
        for (const Next next : wrong.refused) {
          if (next == Next::kStep) run.micro_batch(1);
          run.net.blocks[1]->in_forward = {};
          expect_error([&] { go_on(run.engine, next, folder.path()); },
                       {wrong.says, "'block1.layer.weight'"});
        }
        EXPECT_TRUE(run.engine.load(folder.path() / "right"));
      }
      run.micro_batch(0);
      EXPECT_TRUE(run.engine.step());
      communicator.barrier();
      if (run.rank == 0) std::filesystem::remove_all(folder.path() / "right");
      communicator.barrier();
    }
  });
}

// At stage 3 each kind of write is an error that names the parameter.
TEST_P(WrittenWeights, WithoutAScopeAreRefusedWhereParametersAreSharded) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const at::NoGradGuard no_grad;
    const std::vector<std::function<void(const at::Tensor&)>> writes = {
        [](const at::Tensor& p) { p.clamp_(-0.1, 0.1); },
        [](const at::Tensor& p) { p.zero_(); },
        [](const at::Tensor& p) { p.fill_(1); },
        [](const at::Tensor& p) { p.copy_(at::ones_like(p)); },
        [](const at::Tensor& p) { p.data().mul_(2); },
        [](const at::Tensor& p) { p.view({-1})[0] = 1; },
        [](const at::Tensor& p) { p.normal_(); },
    };
    for (const std::int64_t bucket : {1, 1 << 20}) {
      WritingRun run(communicator, {.stage = 3, .bucket_bytes = bucket});
      for (const nn::Parameter& p : run.engine.strategy().list().parameters) {
        for (std::size_t w = 0; w < writes.size(); ++w) {
          EXPECT_THAT(thrown_by([&] { writes[w](p.tensor); }),
                      ::testing::AllOf(::testing::HasSubstr("'" + p.name + "'"),
                                       ::testing::HasSubstr("UnshardedParameters")))
              << "write " << w;
        }
      }
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
        each->micro_batch(0);
        each->micro_batch(1);
        EXPECT_TRUE(each->engine.step());
        each->micro_batch(2);  // secondary shards are made
      }
      for (at::Tensor& p : expected = run.weights()) p.clamp_(-0.1, 0.1);
      run.with_whole_units([&] { kClamp.apply(run.net); });
      EXPECT_TRUE(same_bits(run.weights(), expected));
      // What is gathered next is what would be gathered from the written shards.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const train::ParameterShard mine = same.engine.strategy().placement(i).kept;
        if (mine.tensor.defined()) at::Tensor(mine.tensor).clamp_(-0.1, 0.1);
      }
      same.engine.strategy().passes().weights_changed();
      const auto loss = [&](WritingRun& each) {
        const at::NoGradGuard no_grad;
        return forward_batch(each.engine.strategy(), writing_batch(each.rank, 9));
      };
      EXPECT_TRUE(at::equal(loss(run), loss(same)));

      WritingRun in_pass(communicator, options, at::kFloat, /*accumulation_steps=*/1);
      in_pass.net.blocks[2]->in_forward = [&net = in_pass.net] {
        const auto whole = net.whole_block(2);
        clamp_weight(*net.blocks[2]);
      };
      in_pass.micro_batch(0);
      expect_error([&] { in_pass.engine.step(); },
                   {"wrote into parameter 'block2.layer.weight' where it had rounded values"});
    }
  });
}

}  // namespace
}  // namespace zero::testing
