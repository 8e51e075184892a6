// Models of plain modules of LibTorch's, whose parameters have their bytes before a strategy comes,
// and parameters without an element.

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <tests/support/scripted_model.hpp>
#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

constexpr std::int64_t kWidth = 64;

at::Tensor drawn(at::IntArrayRef sizes, std::uint64_t seed) {
  return random(sizes, seed, /*gradient=*/false, at::kFloat) * 0.1;
}

struct PlainLinear : torch::nn::Module {
  explicit PlainLinear(std::uint64_t seed)
      : weight(register_parameter("weight", drawn({kWidth, kWidth}, seed))) {}
  at::Tensor weight;
};

struct PlainBlock : nn::Unit {
  explicit PlainBlock(std::uint64_t seed)
      : linear(register_module("linear", std::make_shared<PlainLinear>(seed))) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      const at::Tensor y = x + x.matmul(linear->weight).tanh();
      return empty.defined() ? y + empty.sum() : y;
    });
  }
  std::shared_ptr<PlainLinear> linear;
  at::Tensor empty;
};

// A unit of which there is nothing to send.
struct EmptyBlock : nn::Unit {
  EmptyBlock() : empty(register_parameter("empty", at::empty({0, 3}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return x + empty.sum(); });
  }
  at::Tensor empty;
};

// As many equal blocks as there are ranks, so that each owns one.
struct PlainModel : BatchModel {
  PlainModel(int ranks, bool with_empty) {
    for (int b = 0; b < ranks; ++b) {
      blocks.push_back(register_module(fmt::format("block{}", b),
                                       std::make_shared<PlainBlock>(static_cast<std::size_t>(b))));
    }
    if (!with_empty) return;
    empty_block = register_module("empty_block", std::make_shared<EmptyBlock>());
    blocks[0]->empty = blocks[0]->register_parameter("empty", at::empty({2, 0}));
    unused = register_parameter("unused", at::empty({0}));
    frozen = register_parameter("frozen", at::empty({0}), /*requires_grad=*/false);
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      at::Tensor x = batch.inputs;
      for (const auto& block : blocks) x = block->forward(x);
      return empty_block ? empty_block->forward(x) : x;
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  std::vector<std::shared_ptr<PlainBlock>> blocks;
  std::shared_ptr<EmptyBlock> empty_block;
  at::Tensor unused, frozen;
};

// A model under `mode`, without a source of first values.
struct PlainRun {
  PlainRun(dist::Communicator& communicator, const std::string& mode, bool with_empty)
      : model(communicator.size(), with_empty) {
    strategy = make_strategy(mode, {.module = model,
                                    .mesh = communicator,
                                    .optimizer = optim::adamw({.learning_rate = 0.01}),
                                    .variant = ""});
    trainer = std::make_unique<tools::Trainer>(*strategy, losses_of(*strategy),
                                               train::StepOptions{.clip_norm = 0.01});
  }
  void train(int first, int last) {
    const auto seed = [&](int step) {
      return static_cast<std::uint64_t>(100 * step + strategy->communicator().rank() + 50);
    };
    for (int s = first; s < last; ++s) {
      trainer->step({{.inputs = drawn({4, kWidth}, seed(s)),
                      .targets = drawn({4, kWidth}, seed(s) + 7),
                      .loss_terms = 4}});
    }
  }
  PlainModel model;
  std::unique_ptr<train::Strategy> strategy;
  std::unique_ptr<tools::Trainer> trainer;
};

ZERO_TESTS_ON_RANKS(PlainModules, 2, 3);

TEST_P(PlainModules, ParametersCountAsParametersInEveryMode) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const double n = communicator.size();
    const std::map<std::string, double> copies = {
        {"ddp", 4.0}, {"zero1", 2 + 2 / n}, {"zero2", 1 + 3 / n}, {"zero3", 4 / n}};
    const memory::Snapshot before = memory::snapshot();
    PlainRun run(communicator, mode, /*with_empty=*/false);
    run.train(0, 2);
    const train::ModelStateBytes held = states_since(before);
    EXPECT_EQ(text_of(held), text_of(run.strategy->costs().at_rest));
    if (!copies.contains(mode)) return;
    EXPECT_DOUBLE_EQ(
        static_cast<double>(held.total()) / static_cast<double>(run.strategy->list().bytes()),
        copies.at(mode));
  });
}

ZERO_TESTS_ON_RANKS(EmptyParameters, 1, 2, 3);

TEST_P(EmptyParameters, AreTrainedSavedAndGivenBackLikeOthers) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    std::vector<at::Tensor> reference;
    for (const std::string& mode : all_modes()) {
      SCOPED_TRACE(mode);
      PlainRun run(communicator, mode, /*with_empty=*/true);
      run.train(0, 2);
      io::CheckpointInfo info;
      info.step = 2;
      io::save_checkpoint(*run.strategy, folder / mode, info);
      run.train(2, 4);
      const std::vector<at::Tensor> weights = whole_weights(*run.strategy);
      if (reference.empty()) reference = weights;
      EXPECT_TRUE(same_bits(weights, reference));
      // What ddp has saved this mode takes, and the other way round.
      for (const auto& [from, to] : {std::pair{"ddp", mode.c_str()}, {mode.c_str(), "ddp"}}) {
        PlainRun resumed(communicator, to, /*with_empty=*/true);
        io::load_checkpoint(*resumed.strategy, folder / from);
        resumed.train(2, 4);
        EXPECT_TRUE(same_bits(whole_weights(*resumed.strategy), reference)) << from << " " << to;
      }
      run.strategy->release();
      EXPECT_EQ(run.model.empty_block->empty.sizes(), (std::vector<std::int64_t>{0, 3}));
      EXPECT_EQ(run.model.empty_block->empty.sum().item<float>(), 0.0F);
    }
  });
}

}  // namespace
}  // namespace zero::testing
