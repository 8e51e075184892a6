#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/moved_to.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {

/// One rank that trains the toy under a mode, on a device. Made by all ranks.
struct ToyOn {
  ToyOn(dist::Communicator& communicator, const std::string& mode, at::Device device,
        at::ScalarType dtype = at::kFloat)
      : rank(communicator.rank()), device(device), toy(tools::MlpConfig{.dtype = dtype}) {
    move_to(device, *toy.model);
    strategy = make_strategy(mode, {*toy.model, communicator, optim::adamw(), &toy.values, "",
                                    train::Accumulation::kLocal, dist::ReduceType::kFloat32});
    trainer = std::make_unique<tools::Trainer>(*strategy, losses_of(*strategy));
  }

  void step(int number) { trainer->step({moved_to(device, toy.batch(rank, number))}); }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all = whole_weights(*strategy);
    for (at::Tensor& t : all) t = t.cpu();
    return all;
  }

  int rank;
  at::Device device;
  Toy toy;
  std::unique_ptr<train::Strategy> strategy;
  std::unique_ptr<tools::Trainer> trainer;
};

}  // namespace zero::testing
