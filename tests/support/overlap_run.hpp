#pragma once

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>

#include "toy_run.hpp"
#include "whole_weights.hpp"

/// What tests of chapter 05 share.
namespace zero::testing {

// Large enough to measure memory: four units of about 250 KiB, one of 64 KiB, the root of 9 KiB.
struct Medium : Toy {
  Medium()
      : Toy(tools::MlpConfig{.inputs = 63, .hidden = {257, 255, 251, 253, 257}, .outputs = 9}) {}
};

/// One rank that trains a toy model with ShardedDataParallel.
template <class Model>
struct OverlapRun : ToyRun<ShardedDataParallel, Model> {
  explicit OverlapRun(dist::Communicator& communicator, const ShardingOptions& options = {})
      : ToyRun<ShardedDataParallel, Model>(communicator, "", options) {}
};

// Unsharded bytes of the largest bucket among those from index `first`.
inline std::int64_t largest_bucket(const ShardedDataParallel& strategy, std::size_t first = 0) {
  std::int64_t largest = 0;
  for (std::size_t b = first; b < strategy.buckets().size(); ++b) {
    largest = std::max(largest, strategy.buckets()[b].full_bytes());
  }
  return largest;
}

inline ShardingOptions small_buckets(int stage) {
  // Small: a unit of Toy then has several buckets.
  return {.stage = stage, .bucket_bytes = 1 << 10, .in_flight_bytes = 2 << 10};
}

// Whole weights after `steps` steps; `in_backward` is called with every gradient.
inline std::vector<at::Tensor> trained(
    dist::Communicator& communicator, const ShardingOptions& options, int steps,
    const std::function<void()>& in_backward = [] {}) {
  OverlapRun<Toy> run(communicator, options);
  run.strategy.passes().observe_gradients([&](std::size_t, const at::Tensor&) { in_backward(); });
  for (int s = 0; s < steps; ++s) run.step(s);
  return whole_weights(run.strategy);
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                         const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i], b[i])) << what << ", " << i;
}

}  // namespace zero::testing
