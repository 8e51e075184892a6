#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/nn/model_units.hpp>

namespace zero::testing {

/// A module as users of torch::nn write it, and what a training program computes with it.
struct PlainModule {
  std::shared_ptr<torch::nn::Module> module;
  /// The loss of a micro-batch; draws its data from LibTorch's default generator.
  std::function<at::Tensor()> loss;
  std::optional<std::int64_t> loss_terms = {};  ///< of a micro-batch
};

/// Makes one; the values of its parameters come from the default generator.
struct PlainCase {
  std::string name;
  std::function<PlainModule()> make;
  nn::UnitRule units = nn::default_units(/*bytes=*/1);
};

std::vector<PlainCase> plain_cases();
/// Models of units; "gpt2_of_units" has the names and the first values of case "gpt2".
std::vector<PlainCase> cases_of_units();
/// Of either.
PlainCase plain_case(const std::string& name);

}  // namespace zero::testing
