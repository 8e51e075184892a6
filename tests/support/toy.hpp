#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <memory>

#include <tools/ladder/data/batch.hpp>
#include <tools/models/mlp.hpp>
#include <zero/nn/parameters.hpp>

#include "deferred.hpp"

namespace zero::testing {

/// A small MLP of odd sizes without storage yet, where its values come from, and batches for it
/// that differ by rank and step.
struct Toy {
  explicit Toy(std::uint64_t seed = 5, const tools::MlpConfig& config = {})
      : model(make_deferred<tools::Mlp>(config)), values(seed) {}
  explicit Toy(const tools::MlpConfig& config) : Toy(/*seed=*/5, config) {}

  /// The same model and values in this process alone, whole.
  static Toy alone() {
    Toy toy;
    nn::initialize_parameters(*toy.model, toy.values);
    return toy;
  }

  data::Batch batch(int rank, int step, std::int64_t samples = 4) const {
    at::Generator generator =
        at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * rank + step + 1));
    return {.inputs = at::randn({samples, model->config().inputs}, generator),
            .targets = at::randn({samples, model->config().outputs}, generator),
            .loss_terms = samples};
  }

  std::shared_ptr<tools::Mlp> model;
  nn::SeededValues values;
};

}  // namespace zero::testing
