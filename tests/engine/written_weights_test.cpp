// Loops that write into weights themselves: a WGAN's clamp, a teacher that follows, a norm that is
// kept. The measure is the plain module in one process, with the batches of all ranks.

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine/engine.hpp>
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

struct WritingNet : nn::Model {
  explicit WritingNet(at::ScalarType dtype = at::kFloat)
      : scale(register_parameter("scale", drawn_weights({}, 90, dtype))),
        head(register_parameter("head", drawn_weights({kWritingWidth}, 91, dtype))) {
    for (int b = 0; b < kWritingBlocks; ++b) {
      const auto seed = static_cast<std::uint64_t>(b);
      blocks.push_back(
          register_module(fmt::format("block{}", b), std::make_shared<WritingBlock>(seed, dtype)));
    }
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] {
      at::Tensor x = batch.inputs.to(head.scalar_type());
      for (const auto& block : blocks) x = block->forward(x);
      return x * head * scale;
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch).to(at::kFloat) - batch.targets).square().mean();
  }
  at::Tensor scale, head;
  std::vector<std::shared_ptr<WritingBlock>> blocks;
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

const std::vector<Write> kWrites = {
    {"clamp",
     [](WritingNet& net) { on_all_parameters(net, [](at::Tensor& p) { p.clamp_(-0.1, 0.1); }); }},
    {"clamp of data()",
     [](WritingNet& net) {
       on_all_parameters(net, [](at::Tensor& p) { p.data().clamp_(-0.1, 0.1); });
     }},
    {"teacher", teacher_follows},
    {"scale", [](WritingNet& net) { on_all_parameters(net, [](at::Tensor& p) { p.mul_(0.9); }); }},
    {"copy of a part",
     [](WritingNet& net) {
       const at::NoGradGuard no_grad;
       net.blocks[1]->layer->weight[7].copy_(net.blocks[0]->layer->bias);
     }},
};

// When it does so in a step of two micro-batches.
enum class When { kBeforeForward, kBetweenMicroBatches, kAfterBackward, kAfterStep };
constexpr When kWritingTimes[] = {When::kBeforeForward, When::kBetweenMicroBatches,
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

// The masters of a plain module do not see a write to data(): there it is made in place.
const Write& seen_by_masters(const Write& write, at::ScalarType dtype) {
  const bool hides = std::string(write.name) == "clamp of data()";
  return hides && dtype != at::kFloat ? kWrites.front() : write;
}

std::vector<at::Tensor> plainly_written(int ranks, const Write& write, When when,
                                        at::ScalarType dtype = at::kFloat) {
  WritingNet net(dtype);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  const auto optimizer = writing_optimizer(dtype)(parameters);
  std::vector<std::vector<at::Tensor>> gradients(static_cast<std::size_t>(ranks),
                                                 std::vector<at::Tensor>(parameters.size()));
  play_writes(
      when,
      [&](int number) {
        for (int r = 0; r < ranks; ++r) {
          std::vector<at::Tensor>& of_rank = gradients[static_cast<std::size_t>(r)];
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            parameters[i].mutable_grad() = of_rank[i];
          }
          (net.loss(writing_batch(r, number)) / 2).backward();
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            of_rank[i] = std::exchange(parameters[i].mutable_grad(), at::Tensor());
          }
        }
      },
      [&] {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (!parameters[i].requires_grad()) continue;
          at::Tensor sum = gradients[0][i].to(at::kFloat);
          for (std::size_t r = 1; r < gradients.size(); ++r) sum = sum + gradients[r][i];
          parameters[i].mutable_grad() = (sum / ranks).to(dtype);
          for (auto& of_rank : gradients) of_rank[i] = at::Tensor();
        }
        optimizer->step();
        for (const at::Tensor& p : parameters) p.mutable_grad().reset();
      },
      [&] { seen_by_masters(write, dtype).apply(net); });
  return parameters;
}

struct WritingRun {
  WritingRun(dist::Communicator& communicator, const EngineConfig& options,
             at::ScalarType dtype = at::kFloat, int accumulation_steps = 2)
      : rank(communicator.rank()),
        net(dtype),
        engine(net, communicator, writing_optimizer(dtype),
               {.overlap = options.overlap,
                .more = options.more,
                .accumulation_steps = accumulation_steps}) {}

  void micro_batch(int number) { engine.backward(engine.forward(writing_batch(rank, number))); }
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
                                          When when, at::ScalarType dtype = at::kFloat) {
  WritingRun run(communicator, options, dtype);
  play_writes(
      when, [&](int number) { run.micro_batch(number); }, [&] { EXPECT_TRUE(run.engine.step()); },
      [&] { run.with_whole_units([&] { write.apply(run.net); }); });
  return run.weights();
}

// Options with the bits of the plain module.
std::vector<EngineConfig> writing_options(int ranks) {
  std::vector<EngineConfig> all;
  for (const int stage : {0, 1, 2, 3}) all.push_back({.overlap = {.stage = stage}});
  for (const int stage : {1, 2})
    all.push_back({.overlap = {.stage = stage, .defer_parameter_gather = true}});
  all.push_back({.overlap = {.stage = 3, .lookahead = 0, .whole_below = 100}});
  all.push_back({.overlap = {.stage = 3, .bucket_bytes = 200, .lookahead = 0}});
  all.push_back({.overlap = {.stage = 3, .bucket_bytes = 200, .lookahead = 2, .whole_below = 100}});
  if (ranks == 2) all.push_back(engine_config(R"({"stage": 3, "shard_size": 1})"));
  all.push_back(engine_config(R"({"secondary_shards": true, "group_size": 1})"));
  return all;
}

ZERO_TESTS_ON_RANKS(WrittenWeights, 2, 3);

// Each write with each time; the options take turns, because an engine for each of all would take
// minutes.
void expect_plain_writes(int ranks, const std::vector<Write>& writes, at::ScalarType dtype) {
  on_ranks(ranks, [&](dist::Communicator& communicator) {
    const std::vector<EngineConfig> options = writing_options(communicator.size());
    for (std::size_t w = 0; w < writes.size(); ++w) {
      for (const When when : kWritingTimes) {
        const auto time = static_cast<std::size_t>(when);
        const auto expected = plainly_written(communicator.size(), writes[w], when, dtype);
        for (std::size_t o = (w + time) % writes.size(); o < options.size(); o += writes.size()) {
          const auto weights = written_by_engine(communicator, options[o], writes[w], when, dtype);
          EXPECT_TRUE(same_bits(weights, expected))
              << writes[w].name << ", time " << time << ", " << mode_options(options[o]);
        }
      }
    }
  });
}

TEST_P(WrittenWeights, AreThoseOfThePlainModule) {
  expect_plain_writes(GetParam(), kWrites, at::kFloat);
}

// Groups of two ranks: secondary shards, and copies of the model states.
TEST(WrittenWeightsInGroups, AreThoseOfThePlainModule) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const EngineConfig secondary = engine_config(R"({"secondary_shards": true, "group_size": 2})");
    const Write& write = kWrites[3];
    for (const When when : kWritingTimes) {
      const auto expected = plainly_written(communicator.size(), write, when);
      EXPECT_TRUE(same_bits(written_by_engine(communicator, secondary, write, when), expected));
      for (const int stage : {1, 2, 3}) {
        const EngineConfig copies{.overlap = {.stage = stage}, .more = R"({"shard_size": 2})"};
        const auto weights = written_by_engine(communicator, copies, write, when);
        // The sums of HSDP are those of a tree.
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(close_to(weights[i], expected[i], 1e-5)) << "stage " << stage;
        }
      }
    }
  });
}

// The master weight follows.
TEST_P(WrittenWeights, InBfloat16AreThoseOfThePlainModule) {
  expect_plain_writes(GetParam(), kWrites, at::kBFloat16);
}

// The version counter of a parameter does not show them, and a master weight must follow.
ZERO_TESTS_ON_RANKS(WritesToData, 1, 2, 3);

TEST_P(WritesToData, AreThoseOfThePlainModuleAtEachStage) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const When when : kWritingTimes) {
        const auto expected = plainly_written(communicator.size(), kWrites[1], when, dtype);
        for (const int stage : {0, 1, 2, 3}) {
          EXPECT_TRUE(same_bits(written_by_engine(communicator, {.overlap = {.stage = stage}},
                                                  kWrites[1], when, dtype),
                                expected))
              << "stage " << stage << ", time " << static_cast<int>(when);
        }
      }
    }
  });
}

// Inside the unit's own forward, as for a norm that is kept there.
TEST_P(WrittenWeights, InForwardAreThoseOfThePlainModule) {
  const auto clamp = [](WritingLayer& layer) {
    const at::NoGradGuard no_grad;
    layer.weight.clamp_(-0.1, 0.1);
  };
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    const Write once{"in forward", [&](WritingNet& net) {
                       for (const auto& block : net.blocks) {
                         block->in_forward = [&clamp, &layer = *block->layer] { clamp(layer); };
                       }
                     }};
    const auto expected = plainly_written(communicator.size(), once, When::kBeforeForward);
    for (const EngineConfig& options : writing_options(communicator.size())) {
      WritingRun run(communicator, options);
      for (std::size_t b = 0; b < run.net.blocks.size(); ++b) {
        run.net.blocks[b]->in_forward = [&, b] {
          const train::UnshardedParameters whole(run.engine.strategy(), b + 1);
          clamp(*run.net.blocks[b]->layer);
        };
      }
      play_writes(
          When::kBeforeForward, [&](int number) { run.micro_batch(number); },
          [&] { EXPECT_TRUE(run.engine.step()); }, [] {});
      EXPECT_TRUE(same_bits(run.weights(), expected)) << mode_options(options);
    }
  });
}

TEST_P(WrittenWeights, ThatDifferBetweenRanksAreAnErrorOnAllOfThem) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const EngineConfig& options : writing_options(communicator.size())) {
      for (const auto& [all_write, hides] :
           {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        SCOPED_TRACE(fmt::format("{}, all write: {}, to data(): {}", mode_options(options),
                                 all_write, hides));
        WritingRun run(communicator, options, at::kFloat, /*accumulation_steps=*/1);
        run.micro_batch(0);
        EXPECT_TRUE(run.engine.step());
        run.with_whole_units([&] {
          const at::NoGradGuard no_grad;
          const at::Tensor& weight = run.net.blocks[1]->layer->weight;
          if (all_write || run.rank == 1) (hides ? weight.data() : weight).add_(run.rank);
        });
        run.micro_batch(1);
        expect_error([&] { run.engine.step(); },
                     {"ranks disagree about what the program has written into parameters",
                      "'block1.layer.weight'"});
      }
    }
  });
}

// Without a step in between, too: what leaves the engine would be a mixture.
TEST_P(WrittenWeights, ThatDifferDoNotLeaveTheEngine) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const EngineConfig& options : writing_options(communicator.size())) {
      SCOPED_TRACE(mode_options(options));
      WritingRun run(communicator, options, at::kFloat, /*accumulation_steps=*/1);
      const auto write = [&] {
        const at::NoGradGuard no_grad;
        run.net.blocks[1]->layer->weight.fill_(run.rank);
      };
      run.engine.save(folder.path() / "right");
      run.with_whole_units(write);
      for (const auto& leave : {std::function([&] { run.engine.save(folder.path() / "wrong"); }),
                                std::function([&] { io::state_dict(run.engine.strategy()); }),
                                std::function([&] { run.engine.release(); })}) {
        expect_error(leave, {"ranks disagree about what the program has written", "'block1"});
      }
      // What is loaded takes its place.
      EXPECT_TRUE(run.engine.load(folder.path() / "right"));
      run.micro_batch(0);
      EXPECT_TRUE(run.engine.step());
      communicator.barrier();
      if (run.rank == 0) std::filesystem::remove_all(folder.path() / "right");
      communicator.barrier();
    }
  });
}

// By the rank that writes, on all of them, until weights are loaded. Where the parameter is sharded
// the write itself is the error: see below.
TEST_P(WrittenWeights, OutsideOfAScopeAreRefused) {
  enum class Where { kBetweenSteps, kBeforeAScope, kInForward };
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const EngineConfig& options : writing_options(communicator.size())) {
      WritingRun run(communicator, options, at::kFloat, /*accumulation_steps=*/1);
      run.engine.save(folder.path() / "right");
      const auto write = [&] {
        const at::NoGradGuard no_grad;
        if (run.rank == 1) run.net.blocks[1]->layer->weight.clamp_(-0.1, 0.1);
      };
      for (const Where where : {Where::kBetweenSteps, Where::kBeforeAScope, Where::kInForward}) {
        SCOPED_TRACE(fmt::format("{}, {}", mode_options(options), static_cast<int>(where)));
        run.micro_batch(0);
        EXPECT_TRUE(run.engine.step());
        if (where == Where::kInForward) {
          run.net.blocks[1]->in_forward = write;
        } else if (memory::is_released(run.net.blocks[1]->layer->weight)) {
          continue;
        } else {
          write();
        }
        if (where == Where::kBeforeAScope) run.with_whole_units([] {});
        run.micro_batch(1);
        run.net.blocks[1]->in_forward = {};
        for (const auto& next : {std::function([&] { run.engine.step(); }), std::function([&] {
                                   run.engine.save(folder.path() / "wrong");
                                 })}) {
          expect_error(next, {"the program wrote into parameter 'block1.layer.weight' outside of a "
                              "scope: hold train::UnshardedParameters"});
        }
        EXPECT_TRUE(run.engine.load(folder.path() / "right"));
      }
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
      WritingRun run(communicator, {.overlap = {.stage = 3, .bucket_bytes = bucket}});
      for (const nn::Parameter& p : run.engine.strategy().list().parameters) {
        for (std::size_t w = 0; w < writes.size(); ++w) {
          std::string said = "no error";
          try {
            writes[w](p.tensor);
          } catch (const c10::Error& error) {
            said = error.what_without_backtrace();
          }
          EXPECT_THAT(said, ::testing::AllOf(::testing::HasSubstr("'" + p.name + "'"),
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
      run.with_whole_units([&] { kWrites.front().apply(run.net); });
      EXPECT_TRUE(same_bits(run.weights(), expected));
      // What is gathered next is what would be gathered from the written shards.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const train::ParameterShard mine = same.engine.strategy().local_shard(i);
        if (mine.tensor.defined()) at::Tensor(mine.tensor).clamp_(-0.1, 0.1);
      }
      same.engine.strategy().passes().weights_changed();
      const auto loss = [&](WritingRun& each) {
        const at::NoGradGuard no_grad;
        return each.engine.strategy().forward(writing_batch(each.rank, 9));
      };
      EXPECT_TRUE(at::equal(loss(run), loss(same)));

      WritingRun in_pass(communicator, options, at::kFloat, /*accumulation_steps=*/1);
      in_pass.net.blocks[2]->in_forward = [&] {
        const train::UnshardedParameters whole(in_pass.engine.strategy(), 3);
        const at::NoGradGuard no_grad;
        in_pass.net.blocks[2]->layer->weight.clamp_(-0.1, 0.1);
      };
      in_pass.micro_batch(0);
      expect_error([&] { in_pass.engine.step(); },
                   {"wrote into parameter 'block2.layer.weight' where it had rounded values"});
    }
  });
}

}  // namespace
}  // namespace zero::testing
