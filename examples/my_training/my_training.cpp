// my_training.cpp
#include <iostream>

#include <03_zero3/zero3_sharding.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/layers.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/loop/trainer.hpp>

namespace nn = zero::nn;

// A unit: gathered before it runs, dropped after.
class Block : public nn::Unit {
 public:
  explicit Block(std::int64_t width)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(width, width, nn::Initializer::normal(0.1),
                                                   nn::Initializer::constant(0.0)))) {}

  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return x + linear_->forward(x).tanh(); });
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

// The root unit: it holds whatever no inner unit holds, and knows the loss.
class Regressor : public nn::Model {
 public:
  Regressor(std::int64_t width, int depth) {
    for (int i = 0; i < depth; ++i) {
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Block>(width)));
    }
    head_ = register_module("head",
                            std::make_shared<nn::Linear>(width, 1, nn::Initializer::normal(0.1)));
  }

  at::Tensor loss(const zero::data::Batch& batch) override {
    return run([&] { return at::mse_loss(outputs(batch.inputs), batch.targets); });
  }
  at::Tensor predict(const zero::data::Batch& batch) override {
    return run([&] { return outputs(batch.inputs); });
  }

 private:
  at::Tensor outputs(at::Tensor x) {
    for (const auto& block : blocks_) x = block->forward(x);
    return head_->forward(x);
  }

  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<nn::Linear> head_;
};

// Every rank must see other data; here it is made up.
zero::data::Batch batch_of(int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  zero::data::Batch batch;
  batch.inputs = at::randn({32, 256});
  batch.targets = batch.inputs.narrow(1, 0, 1).sin();
  batch.loss_terms = 32;  // over how many terms the loss is a mean
  return batch;
}

std::string train(zero::dist::Communicator& communicator) {
  // Shapes now; the strategy decides what gets bytes.
  const auto model =
      nn::defer([] { return std::make_shared<Regressor>(/*width=*/256, /*depth=*/4); });
  nn::SeededValues first_values(/*seed=*/42);
  const zero::train::StrategyArguments arguments{
      *model, communicator, zero::optim::adamw({.learning_rate = 1e-3}), &first_values};
  zero::Zero3Sharding strategy(arguments);
  zero::train::Trainer trainer(strategy, {.clip_norm = 1.0});
  for (int step = 0; step < 20; ++step) {
    const auto result = trainer.step({batch_of(communicator.rank(), step)});
    if (communicator.rank() == 0) std::cout << "loss " << result.loss << std::endl;
  }
  std::cout << "rank " << communicator.rank() << " holds "
            << zero::memory::snapshot().model_states() / 1024 << " KiB of model states"
            << std::endl;
  return "";
}

int main() {
  zero::memory::install();  // count bytes; before the first tensor
  try {
    if (const auto environment = zero::dist::rank_environment()) {  // torchrun, mpirun, srun
      train(*zero::dist::connect(*environment));
      return 0;
    }
    zero::dist::check_all_well(zero::dist::launch_ranks({.world_size = 2}, train));  // forks two
    return 0;
  } catch (const std::exception& error) {
    std::cerr << zero::message_of(error) << "\n";
    return 1;
  }
}
