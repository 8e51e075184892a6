#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include <zero/memory/cuda_memory.hpp>

#include "ranks.hpp"

namespace zero::dist::testing {

/// Why `ranks` ranks cannot have GPUs here; empty where they can. NCCL may give one GPU to several.
inline std::string why_no_gpus(int ranks) {
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0);  // where NCCL knows it
  return run_in_process([ranks] {
    std::string problem = memory::gpu_problem();
    if (!problem.empty() || ranks == 1 || ranks_may_share_a_gpu()) return problem;
    problem = memory::gpu_problem(ranks - 1);
    if (problem.empty()) return problem;
    return fmt::format("{}, and this NCCL gives a GPU to one rank only (2.30 can share it)",
                       problem);
  });
}

/// A test of ranks on GPUs. Where there are none it is skipped, with the reason.
class GpuTest : public ::testing::Test {
 protected:
  explicit GpuTest(int ranks = 1) : ranks_(ranks) {}

  void SetUp() override {
    static std::map<int, std::string> reasons;  // to ask takes a process
    const auto [found, is_new] = reasons.try_emplace(ranks_);
    if (is_new) found->second = why_no_gpus(ranks_);
    if (!found->second.empty()) GTEST_SKIP() << found->second;
  }

  /// Runs `body` on the ranks, on as many GPUs as there are.
  void on_gpus(ReductionOrder order, const std::function<void(Communicator&)>& body) {
    const auto exits = launch_ranks(on_nccl(ranks_, order), [&](Communicator& c) -> std::string {
      body(c);
      if (HasFailure()) throw std::runtime_error("assertions failed, see above");
      return "";
    });
    const std::string failures = describe_failures(exits);
    if (!failures.empty()) ADD_FAILURE() << failures;
  }

 private:
  int ranks_;
};

}  // namespace zero::dist::testing
