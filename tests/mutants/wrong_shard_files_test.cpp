// Wrong files of parameters, each the library's own with one line changed (wrong_offloads.cmake).

#include <gmock/gmock.h>

#include <zero/train/flat/shard_file.hpp>

#include "shard_file_fault.hpp"

namespace zero {
namespace wrong {

namespace shard_not_waited_for {
std::string fault();
}
namespace change_not_written {
std::string fault();
}
namespace failed_write_forgotten {
std::string fault();
}

}  // namespace wrong

namespace testing {
namespace {

using ::testing::HasSubstr;

TEST(WrongShardFiles, AreNoticed) {
  EXPECT_EQ(shard_file_fault<train::ShardFile>(), "");
  EXPECT_THAT(wrong::shard_not_waited_for::fault(),
              ::testing::AnyOf(HasSubstr("other bytes"), HasSubstr("finish() comes before")));
  EXPECT_THAT(wrong::change_not_written::fault(), HasSubstr("other bytes in an update"));
  EXPECT_THAT(wrong::failed_write_forgotten::fault(),
              HasSubstr("a write that fails is not noticed"));
}

}  // namespace
}  // namespace testing
}  // namespace zero
