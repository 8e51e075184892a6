// Programs that people wrote for other libraries of sharded training and that went wrong there or
// here: each has the bits of the plain module, or is refused by name on all ranks, after which
// training goes on as if the call had not been.

#include <ATen/ops/embedding.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

constexpr std::int64_t kBlockWidth = 12;

struct UsersNet : torch::nn::Module {
  UsersNet() {
    at::manual_seed(7);
    for (int b = 0; b < 6; ++b) blocks->push_back(torch::nn::Linear(kBlockWidth, kBlockWidth));
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(kBlockWidth, 1));
  }
  torch::nn::LinearImpl& layer(std::size_t b) { return *blocks[b]->as<torch::nn::Linear>(); }
  at::Tensor block(std::size_t b, const at::Tensor& x) { return layer(b).forward(x).tanh(); }
  at::Tensor loss(at::Tensor x) {
    for (std::size_t b = 0; b < blocks->size(); ++b) x = block(b, x);
    return head->forward(x).square().mean();
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{nullptr};
};

at::Tensor users_input(int rank, int number) {
  at::manual_seed(100 * number + rank);
  return at::randn({4, kBlockWidth});
}

const auto kUsersSgd = sgd(0.1, 0.0);

struct UsersRun {
  UsersRun(dist::Communicator& communicator, EngineConfig config, int stage)
      : rank(communicator.rank()), communicator(communicator), config([&] {
          config.stage = stage;
          return config;
        }()) {
    engine = std::make_unique<Engine>(*net, communicator, kUsersSgd, this->config);
  }
  at::Tensor input(int number) const { return users_input(rank, number); }
  at::Tensor forward(int number, std::optional<std::int64_t> terms = {}) {
    return engine->forward([&] { return net->loss(input(number)); }, terms);
  }
  void step(int number) {
    for (std::int64_t m = 0; m < config.accumulation_steps; ++m) {
      engine->backward(forward(number));
      engine->step();
    }
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine->strategy()); }

  int rank;
  dist::Communicator& communicator;
  EngineConfig config;
  std::shared_ptr<UsersNet> net = std::make_shared<UsersNet>();
  std::unique_ptr<Engine> engine;
};

ZERO_TESTS_ON_RANKS(UsersPrograms, 1, 2);

// ---- programs with the bits of the plain module

struct UsersProgram {
  const char* name;
  std::function<void(UsersRun&, int step)> with_engine;
  std::function<void(PlainRanks&, UsersNet&, int step)> alone;
  EngineConfig config = {};
};

// Checkpoints that share a block, alone or after another one: each runs again as a whole.
using Parts = std::vector<std::vector<std::size_t>>;  // blocks; one of more than 5: no checkpoint
at::Tensor in_parts(UsersNet& net, const Parts& parts, at::Tensor x) {
  for (const std::vector<std::size_t>& part : parts) {
    const auto body = [&net, part](const std::vector<at::Tensor>& in) {
      at::Tensor y = in[0];
      for (const std::size_t b : part) y = net.block(b % 6, y);
      return y;
    };
    x = part[0] < 6 ? nn::checkpoint(body, {x}) : body({x});
  }
  return net.head->forward(x).square().mean();
}
UsersProgram checkpoints(const char* name, const Parts& parts) {
  return {name,
          [=](UsersRun& run, int step) {
            run.engine->backward(
                run.engine->forward([&] { return in_parts(*run.net, parts, run.input(step)); }));
            run.engine->step();
          },
          [=](PlainRanks& ranks, UsersNet& net, int step) {
            ranks.backward([&](int r) { return in_parts(net, parts, users_input(r, step)); });
          }};
}

// Micro-batch `empty` of two has no label on any rank, and its loss is no number's mean.
UsersProgram without_labels(const char* name, int empty) {
  return {name,
          [=](UsersRun& run, int step) {
            for (int m = 0; m < 2; ++m) {
              const at::Tensor x = run.input(2 * step + m);
              run.engine->backward(run.engine->forward(
                  [&] { return m == empty ? run.net->loss(x) * 100 : run.net->loss(x); },
                  m == empty ? 0 : 4));
              run.engine->step();
            }
          },
          [=](PlainRanks& ranks, UsersNet& net, int step) {
            ranks.backward([&](int r) { return net.loss(users_input(r, 2 * step + 1 - empty)); });
          },
          {.accumulation_steps = 2}};
}

at::Tensor penalty_of(UsersNet& net) { return net.layer(2).weight.square().sum() * 0.01; }

const std::vector<UsersProgram> kPrograms = {
    checkpoints("checkpoints of two blocks and of the last again", {{6}, {2, 5}, {5}}),
    checkpoints("checkpoints that share the first", {{5}, {5, 2}, {2}}),
    checkpoints("checkpoints of two blocks each", {{2, 5}, {5, 3}, {3, 2}}),
    checkpoints("a block after its checkpoint", {{6}, {2, 5}, {11}, {5}}),
    checkpoints("blocks of two checkpoints each", {{1}, {7}, {1}, {2}, {8}, {2}}),
    without_labels("no label in the first micro-batch", 0),
    without_labels("no label in the second micro-batch", 1),
    {"a penalty on weights whose backward comes second",
     [](UsersRun& run, int step) {
       const at::Tensor first = run.forward(2 * step);
       at::Tensor second = run.forward(2 * step + 1);
       {
         const train::UnshardedParameters whole(run.engine->strategy(), 3);
         second = second + penalty_of(*run.net);
       }
       run.engine->backward(first);
       run.engine->backward(second);
       run.engine->step();
     },
     [](PlainRanks& ranks, UsersNet& net, int step) {
       ranks.backward([&](int r) { return net.loss(users_input(r, 2 * step)) / 2; });
       ranks.backward(
           [&](int r) { return (net.loss(users_input(r, 2 * step + 1)) + penalty_of(net)) / 2; });
     },
     {.accumulation_steps = 2}},
};

TEST_P(UsersPrograms, HaveTheBitsOfThePlainModule) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const UsersProgram& program : kPrograms) {
      UsersRun run(communicator, program.config, stage);
      UsersNet net;
      PlainRanks ranks(net.parameters(), communicator.size(), kUsersSgd);
      for (int step = 0; step < 3; ++step) {
        program.with_engine(run, step);
        program.alone(ranks, net, step);
        ranks.step();
      }
      EXPECT_TRUE(same_bits(run.weights(), net.parameters())) << program.name;
    }
  });
}

TEST_P(UsersPrograms, EvaluateAModelThatIsFrozen) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    UsersNet teacher;
    for (const at::Tensor& p : teacher.parameters()) p.requires_grad_(false);
    const at::Tensor x = users_input(communicator.rank(), 0), expected = teacher.loss(x);
    Engine engine(teacher, communicator, kUsersSgd, {.stage = stage});
    UsersRun student(communicator, {}, stage), undisturbed(communicator, {}, stage);
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(at::equal(engine.evaluate([&] { return teacher.loss(x); }), expected));
      for (UsersRun* run : {&student, &undisturbed}) run->step(step);
    }
    EXPECT_TRUE(same_bits(student.weights(), undisturbed.weights()));
    expect_error([&] { engine.backward(engine.forward([&] { return teacher.loss(x); })); },
                 {"backward() on rank", "of a model whose parameters are all frozen"});
    if (stage == 3) {
      EXPECT_EQ(engine.strategy().costs().at_rest.gradients, 0);
    }
    engine.release();
    EXPECT_TRUE(at::equal(teacher.loss(x), expected));
  });
}

// As in a run that was begun in float32. Also where weights are saved and loaded again before the
// first update.
TEST_P(UsersPrograms, MasterWeightsAreTheValuesThatWereLoaded) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&folder](dist::Communicator& communicator, int stage) {
    UsersNet wide, half, again;
    const auto optimizer = optim::with_master_weights(optim::adamw({.learning_rate = 0.0}));
    for (UsersNet* net : {&half, &again}) net->to(at::kBFloat16);
    safetensors::NamedTensors weights;
    for (const auto& p : wide.named_parameters()) {
      weights.emplace_back(p.key(), p.value().detach() * 1.0001);
    }
    Engine engine(half, communicator, optimizer, {.stage = stage});
    Engine other(again, communicator, optimizer, {.stage = stage});
    const auto step = [&](Engine& of, UsersNet& net) {
      const at::Tensor x = users_input(communicator.rank(), 0).to(at::kBFloat16);
      of.backward(of.forward([&] { return net.loss(x); }));
      of.step();
    };
    const auto expect_masters = [&](Engine& of) {
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto& [tensor, begin] = of.strategy().placement(i).updated;
        if (!tensor.defined()) continue;
        const at::Tensor master = of.strategy().optimizer().state(tensor).at("master");
        EXPECT_TRUE(at::equal(master, weights[i].second.flatten().narrow(0, begin, tensor.numel())))
            << weights[i].first;
      }
    };
    step(engine, half);
    engine.load_weights(weights);
    expect_masters(engine);
    step(engine, half);
    expect_masters(engine);
    other.load_weights(weights);
    const auto place = folder / std::to_string(stage);
    other.save(place);
    other.load_weights(io::state_dict(engine.strategy()));  // rounded
    other.load(place);
    step(other, again);
    expect_masters(other);
  });
}

// What a program has to see beside the error or in place of one.
std::vector<dist::RankExit> said_on_two(const std::function<void(dist::Communicator&)>& program) {
  return ranks_ended({.world_size = 2}, program);
}

TEST(UsersProgramsOnTwoRanks, HearOfSettingsThatDifferFromTheCheckpoints) {
  const TestFolder folder;
  for (const double rate : {0.1, 0.2}) {
    const auto exits = said_on_two([&](dist::Communicator& communicator) {
      UsersNet net, other;
      Engine engine(net, communicator, kUsersSgd, {});
      if (rate == 0.1) engine.save(folder / "here");
      Engine resumed(other, communicator, sgd(rate, 0.0), {});
      resumed.load(folder / "here");
    });
    const std::string note = "learning_rate 0.1 of group 0 (now 0.2), and load() leaves those of";
    for (const dist::RankExit& exit : exits) {
      EXPECT_TRUE(exit.ok()) << exit.output;
      EXPECT_EQ(exit.output.find(note) != std::string::npos, rate == 0.2 && exit.rank == 0);
    }
  }
}

TEST(UsersProgramsOnTwoRanks, HearWhatARankThatLeavesOutABatchShouldDo) {
  const auto exits = said_on_two([&](dist::Communicator& communicator) {
    UsersRun run(communicator, {}, /*stage=*/2);
    for (int step = 0; step < 3; ++step) {
      if (run.rank == 0 || step != 1) run.step(step);
    }
  });
  EXPECT_TRUE(exits[1].ok()) << exits[1].output;
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_NE(exits[0].output.find("rank 1 is gone"), std::string::npos) << exits[0].output;
  EXPECT_NE(exits[0].output.find("one of 0 loss_terms"), std::string::npos) << exits[0].output;
}

// ---- programs that are refused

struct RefusedProgram {
  const char* name;
  std::function<void(UsersRun&)> call;
  std::vector<std::string> words;
  EngineConfig config = {};
  int from_stage = 0;
};

struct WithTable : torch::nn::Module {
  explicit WithTable(bool sparse) {
    const auto options = torch::nn::EmbeddingOptions(5, 4).sparse(sparse);
    table = register_module("table", torch::nn::Embedding(options));
  }
  torch::nn::Embedding table{nullptr};
};

const std::string kUnderInference = "under c10::InferenceMode";

const std::vector<RefusedProgram> kRefusedPrograms = {
    {"a sparse embedding",
     [](UsersRun& run) {
       WithTable net(/*sparse=*/true);
       Engine(net, run.communicator, kUsersSgd, run.config);
     },
     {"parameter 'table.weight' would get sparse gradients", "sparse(false)", "ignored"}},
    {"a sparse look-up",
     [](UsersRun& run) {
       WithTable net(/*sparse=*/false);
       Engine engine(net, run.communicator, kUsersSgd, run.config);
       const at::Tensor loss = engine.forward([&] {
         return at::embedding(net.table->weight, at::tensor({1, 2}), -1, false, /*sparse=*/true)
             .sum();
       });
       const std::string said = error_of([&] { engine.backward(loss); });
       engine.give_up_step();
       throw Error(said);
     },
     {"parameter 'table.weight' has a sparse gradient"}},
    {"a model that was made for inference",
     [](UsersRun& run) {
       const auto net = [] {
         const c10::InferenceMode guard;
         return std::make_shared<UsersNet>();
       }();
       Engine(*net, run.communicator, kUsersSgd, run.config);
     },
     {"parameter 'blocks.0.weight' was made " + kUnderInference}},
    {"an engine that is made for inference",
     [](UsersRun& run) {
       UsersNet net;
       const c10::InferenceMode guard;
       Engine(net, run.communicator, kUsersSgd, run.config);
     },
     {"a strategy is made " + kUnderInference}},
    {"weights that are loaded for inference",
     [](UsersRun& run) {
       const auto weights = io::state_dict(run.engine->strategy());
       const c10::InferenceMode guard;
       run.engine->load_weights(weights);
     },
     {"the weights cannot be loaded: rank 0: they are loaded " + kUnderInference}},
    {"a backward for inference",
     [](UsersRun& run) {
       const at::Tensor loss = run.forward(0);
       const c10::InferenceMode guard;
       run.engine->backward(loss);
     },
     {"backward() on rank", kUnderInference}},
    {"a step for inference",
     [](UsersRun& run) {
       run.engine->backward(run.forward(0));
       const c10::InferenceMode guard;
       run.engine->step();
     },
     {"step() on rank", kUnderInference}},
    {"two losses of one forward",
     [](UsersRun& run) {
       at::Tensor aux;
       const at::Tensor main = run.engine->forward([&] {
         const at::Tensor y = run.net->block(0, run.input(0));
         aux = y.square().mean();
         return run.net->block(1, y).mean();
       });
       run.engine->backward(main);
       run.engine->backward(aux);
     },
     {"whose graph an earlier backward() has used up", "backward(main + aux)"},
     {.accumulation_steps = 2}},
    {"no label in the whole step",
     [](UsersRun& run) {
       run.engine->backward(run.forward(0, 0));
       run.engine->backward(run.forward(1, 0));
     },
     {"all batches of the step have 0 loss terms on all ranks"},
     {.accumulation_steps = 2}},
    {"a save in the middle of a step",
     [](UsersRun& run) {
       run.engine->backward(run.forward(0));
       run.engine->save("/nowhere");
     },
     {"save() in the middle of a step, after 1 of 2 micro-batches", "0 loss_terms"},
     {.accumulation_steps = 2}},
    {"a penalty on the gradient of inputs",
     [](UsersRun& run) {
       const at::Tensor x = run.input(0).requires_grad_();
       run.engine->backward(run.engine->forward([&] {
         const at::Tensor loss = run.net->loss(x);
         return torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0].sum();
       }));
     },
     {"create_graph runs through ", "needs stages 0 to 2"},
     {},
     /*from_stage=*/3},
    {"names with a prefix",
     [](UsersRun& run) {
       auto weights = io::state_dict(run.engine->strategy());
       for (auto& [name, weight] : weights) name = "module." + name;
       run.engine->load_weights(weights);
     },
     {R"(tensor "blocks.0.weight" is missing)", R"("module.blocks.0.weight" is none of)",
      "and 20"}},
};

TEST_P(UsersPrograms, AreRefusedByNameAndLeaveNoTrace) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const std::int64_t micro_batches : {1, 2}) {
      const EngineConfig config{.accumulation_steps = micro_batches};
      UsersRun run(communicator, config, stage), undisturbed(communicator, config, stage);
      int step = 0;
      for (const RefusedProgram& program : kRefusedPrograms) {
        if (program.config.accumulation_steps != micro_batches || stage < program.from_stage) {
          continue;
        }
        SCOPED_TRACE(program.name);
        expect_error([&] { program.call(run); }, program.words);
        run.engine->give_up_step();
        for (UsersRun* both : {&run, &undisturbed}) both->step(step);
        ++step;
      }
      EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
    }
  });
}

}  // namespace
}  // namespace zero::testing
