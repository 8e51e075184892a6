// What makes a comparison with chapter 00 mean something. Chapter 00 itself is compared with
// LibTorch (tests/parity) and with a plain program in one process, to the last bit (tests/fuzz).

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/edge_case_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/parity.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::testing {
namespace {

// What makes a comparison of two runs of this model mean something.
TEST(ParityPremises, RanksDifferWeightsChangeAndUnusedOnesStay) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const RunRecord first = run_edge_case_model(communicator, "ddp", {.steps = 1});
    const RunRecord later = run_edge_case_model(communicator, "ddp", {.steps = 4});
    std::set<std::string> unchanged;
    for (const auto& [name, tensor] : later.state) {
      if (!name.starts_with("parameter/")) continue;
      if (at::equal(tensor, first.state.at(name))) unchanged.insert(name);
    }
    EXPECT_EQ(unchanged, (std::set<std::string>{"parameter/never", "parameter/frozen.weight",
                                                "parameter/layers.frozen.weight"}));
    EXPECT_FALSE(later.state.at("exp_avg/never").any().item<bool>());
    EXPECT_TRUE(later.state.at("exp_avg/sometimes").any().item<bool>());
  });
}

TEST(ParityPremises, ClippingClips) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const RunRecord run = run_edge_case_model(communicator, "ddp", {.steps = 3, .clip_norm = 0.05});
    for (const float norm : run.norms) EXPECT_GT(norm, 0.05F);
  });
}

}  // namespace
}  // namespace zero::testing
