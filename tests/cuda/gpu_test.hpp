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

/// The same. It asks once, because to ask takes a process.
inline std::string why_no_gpus_once(int ranks) {
  static std::map<int, std::string> reasons;
  const auto [found, is_new] = reasons.try_emplace(ranks);
  if (is_new) found->second = why_no_gpus(ranks);
  return found->second;
}

/// Runs `body` on the ranks, on as many GPUs as there are.
inline void on_gpus(int ranks, ReductionOrder order,
                    const std::function<void(Communicator&)>& body) {
  const auto exits = launch_ranks(on_nccl(ranks, order), [&](Communicator& c) -> std::string {
    body(c);
    if (::testing::Test::HasFailure()) throw std::runtime_error("assertions failed, see above");
    return "";
  });
  const std::string failures = describe_failures(exits);
  if (!failures.empty()) ADD_FAILURE() << failures;
}

/// A test of ranks on GPUs. Where there are none it is skipped, with the reason.
class GpuTest : public ::testing::Test {
 protected:
  explicit GpuTest(int ranks = 1) : ranks_(ranks) {}

  void SetUp() override {
    const std::string reason = why_no_gpus_once(ranks_);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  void on_gpus(ReductionOrder order, const std::function<void(Communicator&)>& body) {
    testing::on_gpus(ranks_, order, body);
  }

 private:
  int ranks_;
};

}  // namespace zero::dist::testing
