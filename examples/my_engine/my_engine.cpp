// my_engine.cpp: my_engine FOLDER STEPS trains until STEPS steps are done, on from where FOLDER
// stands
#include <iostream>

#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/engine.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/layers.hpp>
#include <zero/optim/adamw.hpp>

namespace nn = zero::nn;

struct Block : nn::Unit {  // what is gathered at a time
  Block() : linear(register_module("linear", std::make_shared<nn::Linear>(64, 64, kSmall))) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return x + linear->forward(x).tanh(); });
  }
  inline static const nn::Initializer kSmall = nn::Initializer::normal(0.1);
  std::shared_ptr<nn::Linear> linear;
};

struct Net : nn::Unit {
  Net() {
    for (const char* name : {"first", "second", "third"}) {
      blocks.push_back(register_module(name, std::make_shared<Block>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    return run([&] {
      for (const auto& block : blocks) x = block->forward(x);
      return x;
    });
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

at::Tensor inputs_of(int rank, std::int64_t step) {  // other data on every rank
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  return at::randn({32, 64});
}

void train(zero::dist::Communicator& communicator, const std::string& folder, int steps) {
  // Shapes now; the engine decides what gets bytes.
  const auto net = nn::defer([] { return std::make_shared<Net>(); });
  nn::SeededValues first_values(/*seed=*/42);
  zero::Engine engine(*net, communicator, zero::optim::adamw({.learning_rate = 1e-3}),
                      {.stage = 3, .clip_norm = 1.0}, nn::default_units(), &first_values);
  engine.load(folder);  // does nothing if there is no checkpoint yet
  while (engine.steps() < steps) {
    const at::Tensor x = inputs_of(communicator.rank(), engine.steps());
    const at::Tensor loss = engine.forward([&] { return at::mse_loss(net->forward(x), x.sin()); });
    engine.backward(loss);
    const bool updated = engine.step();
    if (updated && engine.steps() % 5 == 0) engine.save(folder);
    if (communicator.rank() == 0) {
      std::cout << "step " << engine.steps() << " loss " << loss.item<float>() << std::endl;
    }
  }
}

int main(int argc, char** argv) {
  try {
    const std::string folder = argc > 1 ? argv[1] : "checkpoint";
    const int steps = argc > 2 ? std::stoi(argv[2]) : 20;
    if (const auto environment = zero::dist::rank_environment()) {  // torchrun, mpirun, srun
      train(*zero::dist::connect(*environment), folder, steps);
      return 0;
    }
    const auto exits = zero::dist::launch_ranks({.world_size = 2}, [&](auto& communicator) {
      train(communicator, folder, steps);
      return std::string();
    });
    zero::dist::check_all_well(exits);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << zero::message_of(error) << "\n";
    return 1;
  }
}
