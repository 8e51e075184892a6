// What programs of ranks on GPUs say where there is none. These tests run everywhere: they hide
// GPUs.

#include <cstdint>

#include <tests/support/set_variable.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/nccl/nccl_version.hpp>
#include <zero/memory/cuda_memory.hpp>

#include "ranks.hpp"

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using testing::on_nccl;
using testing::run_in_process;

// What a rank says that no GPU is shown to.
std::vector<RankExit> without_gpu(int world_size) {
  return launch_ranks(on_nccl(world_size, ReductionOrder::kNative),
                      [](Communicator&) { return std::string("connected"); });
}

class NoGpu : public ::testing::Test {
  const zero::testing::SetVariable none_is_visible_{"CUDA_VISIBLE_DEVICES", ""};
};

TEST_F(NoGpu, IsAnErrorThatEveryRankReports) {
  zero::testing::expect_errors(
      without_gpu(2),
      ::testing::AllOf(
          HasSubstr("the backend nccl cannot be used: rank 0: there is no usable GPU ("),
          HasSubstr("the backend gloo trains on the CPU")));
}

TEST_F(NoGpu, IsAnErrorForARankAloneAsWell) {
  const auto exits = without_gpu(1);
  EXPECT_EQ(exits[0].exit_code, 1);
  EXPECT_THAT(exits[0].output, HasSubstr("there is no usable GPU ("));
}

TEST_F(NoGpu, HasNoMemoryToCount) {
  const std::string message = run_in_process([]() -> std::string {
    try {
      memory::count_cuda_blocks();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  });
  EXPECT_THAT(message, HasSubstr("memory of GPUs: there is no usable GPU ("));
}

// enable_nccl() of the other tests has found them equal.
TEST(NoGpuVersion, OfNcclMustBeThatOfLibTorch) {
  constexpr std::uint64_t kOfTorch = std::uint64_t{2} << 32 | 30 << 16 | 7;
  EXPECT_EQ(nccl_version_problem(23007, kOfTorch), "");
  EXPECT_EQ(nccl_version_problem(23001, kOfTorch), "");
  EXPECT_THAT(nccl_version_problem(22809, kOfTorch),
              ::testing::AllOf(HasSubstr("the header of NCCL 2.28, and LibTorch with that of NCCL "
                                         "2.30"),
                               HasSubstr("nvidia-nccl")));
}

}  // namespace
}  // namespace zero::dist
