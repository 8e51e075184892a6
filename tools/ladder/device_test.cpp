// --device cuda is an error that says why if there is no GPU; ./run gpu has the ladder on GPUs.
#include <gmock/gmock.h>

#include <cstdlib>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

TEST(Device, WithoutAGpuIsAnErrorBeforeAnythingIsWritten) {
  const TestFolder folder;
  ::setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
  const ProcessResult ended = run_ladder(folder, kQuick + "--device cuda");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(ended.code, 1);
#ifdef ZERO_LADDER_HAS_CUDA
  EXPECT_THAT(ended.said, HasSubstr("--device cuda: there is no usable GPU ("));
#else
  EXPECT_THAT(ended.said, HasSubstr("ladder_cuda cannot be started"));
#endif
  EXPECT_THAT(folder.listing(), ::testing::IsEmpty());
}

TEST(Device, CpuIsTheSameInBothPrograms) {
#ifndef ZERO_LADDER_HAS_CUDA
  GTEST_SKIP() << "there is no ladder_cuda: LibTorch has no CUDA, or its headers are missing";
#else
  const TestFolder folder;
  const std::string arguments = kQuick + "--modes ddp,zero3 --device cpu";
  const auto one = testing::figures_of(folder, arguments);
  const auto other = testing::figures_of(folder, arguments, ZERO_LADDER_PROGRAM "_cuda");
  for (int m = 0; m < 2; ++m) {
    for (const char* what : {"total_mib", "losses", "digest", "sent_bytes_per_rank"}) {
      EXPECT_EQ(one.at("modes").at(m).at(what), other.at("modes").at(m).at(what)) << what;
    }
  }
#endif
}

}  // namespace
}  // namespace zero::ladder
