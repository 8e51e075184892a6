// weight_average.cpp: an exponential moving average of the weights, for evaluation. A second engine
// of the same stage has the averages: each rank moves those of its own shard, and nothing is sent.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>
#include <string>

#include <zero/distributed/launch.hpp>
#include <zero/engine.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace {

constexpr double kDecay = 0.9;

torch::nn::Sequential made() {
  at::manual_seed(1);  // both models begin alike
  return torch::nn::Sequential(torch::nn::Linear(8, 64), torch::nn::Linear(64, 1));
}

at::Tensor loss_of(torch::nn::Sequential& net, int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  const at::Tensor x = at::randn({16, 8});
  return (net->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
}

auto optimizer_of(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(3e-3));
}

void say(int step, const at::Tensor& loss, const at::Tensor& with_average) {
  std::cout << "step " << step << " loss " << loss.item<float>() << ", of the average "
            << with_average.item<float>() << std::endl;
}

#ifdef ALONE
void train(int steps) {
  torch::nn::Sequential net = made(), average = made();
  const auto optimizer = optimizer_of(net->parameters());
  for (int step = 1; step <= steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = loss_of(net, 0, step);
    loss.backward();
    optimizer->step();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      average->parameters()[i].lerp_(net->parameters()[i], 1 - kDecay);
    }
    say(step, loss, loss_of(average, 0, step));
  }
}
#else
void train(int steps, zero::dist::Communicator& communicator) {
  const auto optimizer = [](const auto& p) { return zero::optim::wrap(optimizer_of(p)); };
  torch::nn::Sequential net = made(), average = made();
  zero::Engine engine(*net, communicator, optimizer, {.stage = 3});
  zero::Engine averages(*average, communicator, optimizer, {.stage = 3});
  for (int step = 1; step <= steps; ++step) {
    const int rank = communicator.rank();
    const at::Tensor loss = engine.forward([&] { return loss_of(net, rank, step); });
    engine.backward(loss);
    engine.step();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < engine.strategy().list().size(); ++i) {
      engine.strategy().bring(i);
      averages.strategy().bring(i);
      const at::Tensor mine = engine.strategy().placement(i).kept.tensor;
      if (mine.defined()) averages.strategy().placement(i).kept.tensor.lerp_(mine, 1 - kDecay);
    }
    averages.strategy().passes().weights_changed();  // what is gathered from now on is new
    const at::Tensor seen = averages.evaluate([&] { return loss_of(average, rank, step); });
    if (rank == 0) say(step, loss, seen);
  }
}
#endif

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::cerr << "weight_average STEPS [RANKS]\n", 1;
#ifdef ALONE
  train(std::stoi(argv[1]));
#else
  const int ranks = argc > 2 ? std::stoi(argv[2]) : 2;
  zero::dist::check_all_well(zero::dist::launch_ranks(
      {.world_size = ranks}, [&](auto& c) { return train(std::stoi(argv[1]), c), std::string(); }));
#endif
} catch (const std::exception& error) {
  return std::cerr << "weight_average: " << error.what() << "\n", 1;
}
