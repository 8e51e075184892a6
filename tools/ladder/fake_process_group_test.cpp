// The ladder program as one rank of a fake process group: beside the same rank of a real one, and
// what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::BadInput;
using testing::expect_refused_before_writing;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

const std::string kAllModes =
    "ddp,ddp:flat,zero1,zero1:naive,zero2,zero2:placeholder,zero3,zero3:whole,tensor_zero1,"
    "tensor_zero1:naive,tensor_zero2,tensor_zero3,tensor_zero3:per_parameter,tensor_zero3:whole";

json report_of(const TestFolder& folder) {
  return json::parse(testing::read_bytes(folder / "out.json"));
}

TEST(FakeProcessGroup, AnyRankOf512RunsEveryModeAndHoldsWhatTheFormulasSay) {
  for (const int rank : {0, 300}) {
    const TestFolder folder;
    const ProcessResult ended =
        run_ladder(folder, kQuick + "--fake-process-group 512 --rank " + std::to_string(rank) +
                               " --modes " + kAllModes);
    ASSERT_EQ(ended.code, 0) << ended.said;
    EXPECT_THAT(ended.said, AllOf(HasSubstr("rank " + std::to_string(rank) + " of 512 in a fake"),
                                  HasSubstr("weights are not compared (n/a)")));
    const json report = report_of(folder);
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

// What a rank of two really holds and sends, it holds and would send where the other is not there.
void expect_same_rank(const json& fake, const json& real) {
  for (const char* what : {"parameter_mib", "gradient_mib", "optimizer_mib", "sent_gradient_bytes",
                           "sent_parameter_bytes"}) {
    EXPECT_EQ(fake.at("ranks").at(0).at(what), real.at(what)) << fake.at("mode") << what;
  }
}

class FakeProcessGroupIn : public ::testing::TestWithParam<const char*> {};

TEST_P(FakeProcessGroupIn, HasTheFiguresOfTheSameRankOfARealWorld) {
  const std::string both = kQuick + "--dtype " + GetParam() + " --modes " + kAllModes;
  const TestFolder real_folder;
  const ProcessResult real = run_ladder(real_folder, both + " --nproc 2");
  ASSERT_EQ(real.code, 0) << real.said;
  const json of_real = report_of(real_folder);
  std::vector<double> first_losses(of_real.at("modes").size(), 0.0);
  for (const std::size_t rank : {0U, 1U}) {
    const TestFolder folder;
    const ProcessResult fake =
        run_ladder(folder, both + " --fake-process-group 2 --rank " + std::to_string(rank));
    ASSERT_EQ(fake.code, 0) << fake.said;
    const json of_fake = report_of(folder);
    ASSERT_EQ(of_fake.at("modes").size(), of_real.at("modes").size());
    for (std::size_t m = 0; m < of_fake.at("modes").size(); ++m) {
      expect_same_rank(of_fake.at("modes")[m], of_real.at("modes")[m].at("ranks")[rank]);
      first_losses[m] += of_fake.at("modes")[m].at("losses")[0].get<double>() / 2;
    }
  }
  // The first forward is real: what the ranks find, each alone, has the real world's mean.
  for (std::size_t m = 0; m < first_losses.size(); ++m) {
    EXPECT_DOUBLE_EQ(first_losses[m], of_real.at("modes")[m].at("losses")[0].get<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FakeProcessGroupIn, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

class BadFakeProcessGroup : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadFakeProcessGroup, IsRefusedBeforeAnythingIsWritten) {
  const std::string& arguments = GetParam().arguments;
  const bool names_a_model = arguments.find("--model") != std::string::npos;
  expect_refused_before_writing(GetParam(), (names_a_model ? "--seq-len 16 " : kQuick) + arguments);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFakeProcessGroup,
    ::testing::Values(
        BadInput{"RankWithoutAWorld", "--rank 3", {"--rank requires --fake-process-group"}},
        BadInput{"RankThatTheWorldLacks",
                 "--fake-process-group 512 --rank 512",
                 {"--rank 512: a world of 512 has the ranks 0 to 511"}},
        BadInput{"NegativeRank", "--fake-process-group 4 --rank -1", {"--rank", "-1 not in range"}},
        BadInput{
            "NoWorld", "--fake-process-group 0", {"--fake-process-group", "Value 0 not in range"}},
        BadInput{"TooLargeAWorld",
                 "--fake-process-group 4097",
                 {"--fake-process-group", "4097 not in range"}},
        BadInput{"RealRanksToo",
                 "--fake-process-group 4 --nproc 2",
                 {"--nproc excludes --fake-process-group"}},
        BadInput{
            "Save", "--fake-process-group 4 --save x", {"--save excludes --fake-process-group"}},
        BadInput{"MemoryTimeline",
                 "--fake-process-group 4 --memory-timeline x",
                 {"--memory-timeline excludes --fake-process-group"}},
        BadInput{"Checkpoint",
                 "--fake-process-group 4 --modes ddp --checkpoint x",
                 {"--checkpoint excludes --fake-process-group"}},
        BadInput{"Resume",
                 "--fake-process-group 4 --resume x",
                 {"--resume excludes --fake-process-group"}},
        BadInput{"Mode", "--fake-process-group 4 --modes zero4", {"unknown mode 'zero4'"}},
        BadInput{"TooFewSamples",
                 "--fake-process-group 4096 --batch 4096",
                 {"one step over all ranks takes 16777216"}},
        BadInput{"DoesNotFit",
                 "--fake-process-group 32 --rank 31 --model llama-1.5b --modes tensor_zero3,ddp "
                 "--assume-free-memory 4096",
                 {"llama-1.5b: rank 31 of 32 needs about", "4.0 GiB are free",
                  "modes that shard more"}}),
    [](const auto& info) { return info.param.name; });

// What one rank needs is far less than what 512 would.
TEST(FakeProcessGroup, OnlyItsOneRankMustFit) {
  const TestFolder folder;
  const ProcessResult ended = run_ladder(
      folder, kQuick + "--fake-process-group 512 --modes tensor_zero3 --assume-free-memory 400");
  EXPECT_EQ(ended.code, 0) << ended.said;
}

TEST(FakeProcessGroup, ALaunchersRankIsRefused) {
  const TestFolder folder;
  for (const auto& [name, value] : {std::pair{"RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", "29511"}}) {
    ::setenv(name, value, /*replace=*/1);
  }
  const ProcessResult ended = run_ladder(folder, kQuick + "--fake-process-group 4");
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(ended.code, 1) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("a launcher started this one as rank 1 of 2"));
  EXPECT_THAT(folder.listing(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace zero::ladder
