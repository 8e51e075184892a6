// Ranks on GPUs. Where there is no GPU these tests are skipped, with the reason and their number.

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <cstdlib>
#include <iostream>

#include <zero/base/error.hpp>

#include "gpu_test.hpp"

namespace zero::dist {
namespace {

using testing::GpuTest;
using ::testing::HasSubstr;
using testing::on_nccl;

// Says at the end how many tests did not run.
class SkippedCount : public ::testing::Environment {
 public:
  void TearDown() override {
    const auto& all = *::testing::UnitTest::GetInstance();
    if (all.skipped_test_count() == 0) return;
    std::cout << all.skipped_test_count() << " of " << all.test_to_run_count()
              << " tests on GPUs did not run\n";
  }
};
const auto* const kSkippedCount = ::testing::AddGlobalTestEnvironment(new SkippedCount);

constexpr int kRanks = 3;  // two do not show in which order a sum is taken

// On kRanks ranks.
class SeveralGpus : public GpuTest {
 protected:
  SeveralGpus() : GpuTest(kRanks) {}
};

class GpuFault : public SeveralGpus {};

at::Device gpu_of(const Communicator& c) {
  // Connecting has made the rank's GPU the current one.
  return {at::kCUDA, at::empty({0}, at::TensorOptions(at::kCUDA)).device().index()};
}

TEST_F(GpuFault, ALostRankIsAnErrorInTime) {
  LaunchOptions options = on_nccl(kRanks, ReductionOrder::kNative);
  options.connect.timeout = std::chrono::seconds(15);
  const auto exits = launch_ranks(options, [](Communicator& c) -> std::string {
    at::Tensor t = at::ones({1000}, at::TensorOptions(gpu_of(c)));
    c.all_reduce(t, Purpose::kGradient).wait();
    if (c.rank() == 1) std::_Exit(0);
    try {
      c.all_reduce(t, Purpose::kGradient).wait();
      c.synchronize();  // the wait was the stream's
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  });
  for (const int survivor : {0, 2}) {
    const RankExit& exit = exits[static_cast<std::size_t>(survivor)];
    EXPECT_TRUE(exit.ok()) << describe_failures(exits);
    EXPECT_THAT(exit.result, HasSubstr("all_reduce #1 (gradient, 4000 bytes)"));
  }
}

}  // namespace
}  // namespace zero::dist
