#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "overlap.hpp"

/// What the tests of this chapter share.
namespace zero::testing {

// Large enough for bytes to say something: five units of 260 KiB.
struct Medium : Toy {
  Medium() {
    const nn::DeferredStorage deferred;
    nn::MlpConfig config;
    config.inputs = 63;
    config.hidden = {257, 255, 251, 253, 257};
    config.outputs = 9;
    model = std::make_shared<nn::Mlp>(config);
  }
};

inline OverlapOptions small_buckets(int stage) {
  OverlapOptions options;
  options.stage = stage;
  options.bucket_bytes = 1 << 10;  // of the toy's: several in a unit
  options.in_flight_bytes = 2 << 10;
  return options;
}

// Whole weights after `steps` steps; `in_backward` is called with every gradient.
inline std::vector<at::Tensor> trained(
    dist::Communicator& communicator, const OverlapOptions& options, int steps,
    const std::function<void()>& in_backward = [] {}) {
  Toy toy;
  Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
  strategy.observe_gradients([&](std::size_t, const at::Tensor&) { in_backward(); });
  train::Trainer trainer(strategy);
  for (int s = 0; s < steps; ++s) trainer.step({toy.batch(communicator.rank(), s)});
  return whole_weights(strategy);
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                         const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i], b[i])) << what << ", " << i;
}

}  // namespace zero::testing
