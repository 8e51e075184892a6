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

// The root unit: it holds whatever no inner unit holds.
class Regressor : public nn::Unit {
 public:
  Regressor(std::int64_t width, int depth) {
    for (int i = 0; i < depth; ++i) {
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Block>(width)));
    }
    head_ = register_module("head",
                            std::make_shared<nn::Linear>(width, 1, nn::Initializer::normal(0.1)));
  }

  at::Tensor forward(at::Tensor x) {
    return run([&] {
      for (const auto& block : blocks_) x = block->forward(x);
      return head_->forward(x);
    });
  }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<nn::Linear> head_;
};

// Every rank must see other data; here it is made up.
at::Tensor inputs_of(int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  return at::randn({32, 256});
}

std::string train(zero::dist::Communicator& communicator) {
  // Shapes now; the strategy decides what gets bytes.
  const auto model =
      nn::defer([] { return std::make_shared<Regressor>(/*width=*/256, /*depth=*/4); });
  nn::SeededValues first_values(/*seed=*/42);
  const zero::train::StrategyArguments arguments{
      *model, communicator, zero::optim::adamw({.learning_rate = 1e-3}), &first_values};
  zero::Zero3Sharding strategy(arguments);
  for (int step = 0; step < 20; ++step) {
    const at::Tensor x = inputs_of(communicator.rank(), step), y = x.narrow(1, 0, 1).sin();
    strategy.zero_grad();
    const at::Tensor loss = strategy.forward([&] { return at::mse_loss(model->forward(x), y); });
    strategy.backward(loss);
    strategy.finish_backward();
    strategy.clip_grad_norm(1.0);
    strategy.optimizer_step();
    strategy.sync_parameters();
    if (communicator.rank() == 0) std::cout << "loss " << loss.item<float>() << std::endl;
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
