#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include <zero/optim/adamw.hpp>
#include <zero/optim/muon.hpp>

#include "hooked_optimizer.hpp"

namespace zero::testing {

/// An optimizer under test, with a learning rate of 0.01.
struct OptimizerKind {
  std::string name;  ///< in its settings
  optim::OptimizerFactory make;
  std::int64_t states;  ///< tensors that it keeps for a parameter
};

template <typename Torch, typename Options>
OptimizerKind torch_kind(const std::string& name, const Options& options, std::int64_t states) {
  return {"torch " + name, wrapped<Torch>(options), states};
}

/// LibTorch's, wrapped.
inline std::vector<OptimizerKind> torch_kinds() {
  namespace torch_optim = torch::optim;
  using torch_optim::AdagradOptions, torch_optim::AdamWOptions, torch_optim::RMSpropOptions;
  return {torch_kind<torch_optim::Adam>("Adam", torch_optim::AdamOptions(0.01), 2),
          torch_kind<torch_optim::AdamW>("AdamW", AdamWOptions(0.01), 2),
          torch_kind<torch_optim::SGD>("SGD", torch_optim::SGDOptions(0.01).momentum(0.9), 1),
          torch_kind<torch_optim::AdamW>("AdamW", AdamWOptions(0.01).amsgrad(true), 3),
          torch_kind<torch_optim::Adagrad>(
              "Adagrad", AdagradOptions(0.01).lr_decay(0.1).initial_accumulator_value(0.1), 1),
          torch_kind<torch_optim::RMSprop>("RMSprop", RMSpropOptions(0.01), 1),
          torch_kind<torch_optim::RMSprop>("RMSprop",
                                           RMSpropOptions(0.01).momentum(0.9).centered(true), 3)};
}

/// Muon of all matrices that it gets, whatever their names are in their module.
inline optim::OptimizerFactory muon_of(const optim::MuonOptions& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    torch::nn::Module module;
    for (const at::Tensor& p : parameters) {
      module.register_parameter(std::to_string(module.parameters().size()), p, p.requires_grad());
    }
    return optim::muon(module, options, {.learning_rate = options.learning_rate})(parameters);
  };
}

/// Those and ours; of a vector Muon keeps what AdamW does.
inline std::vector<OptimizerKind> optimizer_kinds() {
  std::vector<OptimizerKind> all = {{"AdamW", optim::adamw({.learning_rate = 0.01}), 2},
                                    {"torch SGD", sgd(0.01, 0.0), 0},
                                    {"Muon", muon_of({.learning_rate = 0.01}), 2}};
  for (const OptimizerKind& kind : torch_kinds()) all.push_back(kind);
  return all;
}

}  // namespace zero::testing
