#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parity.hpp"
#include "ranks.hpp"

/// Ranks in groups, for the chapters whose modes have them.
namespace zero::testing {

/// R groups of S ranks.
struct Shape {
  int replicas;
  int shards;
  int ranks() const { return replicas * shards; }
  int outside() const { return ranks() - shards; }
};

inline std::string name_of_shape(const ::testing::TestParamInfo<Shape>& info) {
  return fmt::format("R{}S{}", info.param.replicas, info.param.shards);
}

/// Expects that each of `modes` has the bits of `reference`. The model has tied, frozen, unused and
/// tiny parameters.
inline void expect_like(const Shape& shape, const std::string& reference,
                        const std::vector<std::string>& modes, const RunOptions& options) {
  on_ranks(shape.ranks(), [&](dist::Communicator& communicator) {
    const RunRecord expected = run_edge_case_model(communicator, reference, options);
    RunOptions other_seeds = options;
    other_seeds.same_seed = false;  // the values of rank 0 must replace those of all groups
    for (const std::string& mode : modes) {
      SCOPED_TRACE(mode);
      expect_identical(run_edge_case_model(communicator, mode, other_seeds), expected);
    }
  });
}

}  // namespace zero::testing
