// The ladder program as one rank of a fake process group: beside the same rank of a real one, and
// what it refuses.

#include <nlohmann/json.hpp>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::expect_all_refused;
using testing::figures_of;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::TestFolder;

const std::string kAllModes =
    "ddp,ddp:flat,zero1,zero1:naive,zero2,zero2:placeholder,zero3,zero3:whole,tensor_zero1,"
    "tensor_zero1:naive,tensor_zero2,tensor_zero3,tensor_zero3:per_parameter,tensor_zero3:whole";

TEST(FakeProcessGroup, AnyRankOf512RunsEveryModeAndHoldsWhatTheFormulasSay) {
  for (const int rank : {0, 300}) {
    const TestFolder folder;
    const auto [said, report] =
        testing::succeed(folder, kQuick + "--fake-process-group 512 --rank " +
                                     std::to_string(rank) + " --modes " + kAllModes);
    EXPECT_THAT(said, AllOf(HasSubstr("rank " + std::to_string(rank) + " of 512 in a fake"),
                            HasSubstr("compared (n/a)")));
    EXPECT_EQ(report.at("fake_process_group").at("size"), 512);
    EXPECT_EQ(report.at("fake_process_group").at("rank"), rank);
    EXPECT_EQ(report.at("modes").size(), 14U);
    for (const json& row : report.at("modes")) {
      const json& held = row.at("ranks").at(0);
      EXPECT_EQ(held.at("total_mib").get<double>() - held.at("other_mib").get<double>(),
                row.at("formula_mib").get<double>())
          << row;
      EXPECT_TRUE(row.at("digest").is_null());
    }
  }
}

TEST(FakeProcessGroup, RefusesBadArgumentsBeforeAnythingIsWritten) {
  expect_all_refused(
      kQuick,
      {
          {"--rank 3", {"--rank requires --fake-process-group"}},
          {"--fake-process-group 512 --rank 512",
           {"--rank 512: a world of 512 has the ranks 0 to 511"}},
          {"--fake-process-group 4 --rank -1", {"--rank", "-1 not in range"}},
          {"--fake-process-group 0", {"--fake-process-group", "Value 0 not in range"}},
          {"--fake-process-group 4097", {"--fake-process-group", "4097 not in range"}},
          {"--fake-process-group 4 --nproc 2", {"--nproc excludes --fake-process-group"}},
          {"--fake-process-group 4 --save x", {"--save excludes --fake-process-group"}},
          {"--fake-process-group 4 --memory-timeline x",
           {"--memory-timeline excludes --fake-process-group"}},
          {"--fake-process-group 4 --modes ddp --checkpoint x",
           {"--checkpoint excludes --fake-process-group"}},
          {"--fake-process-group 4 --resume x", {"--resume excludes --fake-process-group"}},
          {"--fake-process-group 4 --validation 0.1",
           {"--validation excludes --fake-process-group"}},
          {"--fake-process-group 4 --modes zero4", {"unknown mode 'zero4'"}},
          {"--fake-process-group 4096 --batch 4096", {"one step over all ranks takes 16777216"}},
      });
  expect_all_refused(
      "--seq-len 16 ",
      {
          {"--fake-process-group 4 --epochs 1", {"--epochs excludes --fake-process-group"}},
          {"--fake-process-group 32 --rank 31 --model llama-1.5b --modes tensor_zero3,ddp "
           "--assume-free-memory 4096",
           {"llama-1.5b: rank 31 of 32 needs about", "4.0 GiB are free", "modes that shard more"}},
      });
}

// What one rank needs is far less than what 512 would.
TEST(FakeProcessGroup, OnlyItsOneRankMustFit) {
  const TestFolder folder;
  figures_of(folder,
             kQuick + "--fake-process-group 512 --modes tensor_zero3 --assume-free-memory 400");
}

}  // namespace
}  // namespace zero::ladder
