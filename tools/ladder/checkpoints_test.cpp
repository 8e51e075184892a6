// The ladder with --checkpoint and --resume: killed, gone on, under other modes and on other
// numbers of ranks; and what it refuses.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>
#include <tests/support/program.hpp>
#include <zero/io/checkpoint.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::TestFolder;

const std::string kOfAnyLength = "--model tiny --no-compute-alone --timeout 30 ";
const std::string kTiny = kOfAnyLength + "--seq-len 16 ";

std::string folder_option(const std::string& option, const TestFolder& folder,
                          const std::string& name = "run") {
  return option + testing::shell_word(folder / name);
}

// The modes in the figures of a run that must succeed.
json figures(const TestFolder& folder, const std::string& arguments) {
  return testing::figures_of(folder, kTiny + arguments).at("modes");
}

std::string digest(const json& mode) { return mode.at("ranks").at(0).at("digest"); }

// Steps of the checkpoint that is there; 0 if there is none yet.
std::int64_t steps_kept(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "checkpoint.json")) return 0;
  return io::read_checkpoint_info(folder).step;
}

// Blocks until a checkpoint of at least `step` is there; false after a minute.
bool reaches(const std::filesystem::path& folder, std::int64_t step) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (steps_kept(folder) < step) {
    if (std::chrono::steady_clock::now() > limit) return false;
    ::usleep(1'000);
  }
  return true;
}

TEST(Resume, ARunThatWasKilledEndsWithTheWeightsOfOneThatWasNot) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans come to this process
  const TestFolder folder;
  std::int64_t steps = 0;
  for (int kills = 1; kills <= 2; ++kills) {
    const std::string resume = kills > 1 ? folder_option("--resume", folder) : "";
    zero::testing::Program program(
        {"/bin/sh", "-c",
         "exec '" ZERO_LADDER_PROGRAM "' " + kTiny +
             "--modes tensor_zero3 --steps 1000000 --checkpoint-every 1 " + resume +
             folder_option("--checkpoint", folder) + folder_option("--json", folder, "x")},
        {{"OMP_NUM_THREADS", "1"}});
    ASSERT_TRUE(reaches(folder / "run", steps + 3)) << program.said();
    EXPECT_EQ(program.kill(), 128 + SIGKILL);
    ASSERT_TRUE(program.group_ends());
    EXPECT_GE(steps_kept(folder / "run"), steps + 3);
    steps = steps_kept(folder / "run");
  }
  const std::string rest = fmt::format("--modes tensor_zero3 --steps {} ", steps + 3);
  const json never_stopped = figures(folder, rest);
  const json killed_twice = figures(
      folder, rest + folder_option("--resume", folder) + folder_option("--checkpoint", folder));
  ASSERT_EQ(killed_twice.at(0).at("losses").size(), 3U);
  EXPECT_EQ(killed_twice[0]["losses"].back(), never_stopped.at(0).at("losses").back());
  EXPECT_EQ(digest(killed_twice[0]), digest(never_stopped[0]));
  EXPECT_EQ(steps_kept(folder / "run"), steps + 3);
}

TEST(Resume, SaysWhereItGoesOn) {
  const TestFolder folder;
  figures(folder, "--steps 2 --modes zero1 " + folder_option("--checkpoint", folder));
  const std::string said = testing::succeed(folder, kTiny + "--steps 3 --modes zero3 " +
                                                        folder_option("--resume", folder))
                               .said;
  EXPECT_THAT(said, HasSubstr("tiny as language model on 2 ranks, 1 steps of 1 x 16"));
  EXPECT_THAT(said, HasSubstr("goes on after step 2 of " + (folder / "run").string() +
                              ", saved by zero1 on 2 ranks"));
  EXPECT_THAT(said, HasSubstr("zero3  3/3")) << "the steps before it count";
}

// A folder with a checkpoint of step 2, and runs that may not go on from it or write over it.
class RefusedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    figures(folder_, "--steps 2 --modes zero1 " + folder_option("--checkpoint", folder_));
    std::filesystem::remove(folder_ / "out.json");
  }

  void expect_refused(const std::string& arguments, const std::string& message, int seq_len = 16) {
    testing::expect_refused(
        folder_, fmt::format("{}--seq-len {} --modes zero1 {}", kOfAnyLength, seq_len, arguments),
        {message}, ::testing::AnyOf(1, 2));
  }

  TestFolder folder_;
  const std::string resume_ = folder_option("--resume", folder_);
  const std::string checkpoint_ = folder_option("--checkpoint", folder_);
};

TEST_F(RefusedRun, WithOtherBatchesOrNoneLeft) {
  expect_refused(resume_ + "--steps 4 --batch 2", "saved position is of seed 42");
  expect_refused(resume_ + "--steps 4 --seed 7", "this run has seed 7");
  expect_refused(resume_ + "--steps 4", "saved position is of seed 42", /*seq_len=*/32);
  expect_refused(resume_ + "--steps 2", "it is of step 2");
  // As many samples, and others.
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i * i) + " ";
  const std::string one = folder_.write("one.txt", text);
  const std::string two = folder_.write("two.txt", std::string(text.rbegin(), text.rend()));
  figures(folder_, "--steps 2 --modes zero1 --data '" + one + "' " +
                       folder_option("--checkpoint", folder_, "of_one"));
  expect_refused("--steps 4 --data '" + two + "' " + folder_option("--resume", folder_, "of_one"),
                 "its run was trained on other data");
}

TEST_F(RefusedRun, WithFoldersOrOptionsThatDoNotFit) {
  expect_refused(checkpoint_, "holds a checkpoint of step 2: go on from it with --resume");
  std::filesystem::copy(folder_ / "run", folder_ / "other",
                        std::filesystem::copy_options::recursive);
  expect_refused(checkpoint_ + "--steps 4 " + folder_option("--resume", folder_, "other"),
                 "holds a checkpoint of step 2");
  expect_refused("--modes ddp,zero1 " + folder_option("--checkpoint", folder_, "new"),
                 "--checkpoint keeps one run");
  expect_refused("--checkpoint-every 2", "--checkpoint-every requires --checkpoint");
  expect_refused(folder_option("--checkpoint", folder_, "new") + "--checkpoint-every 0",
                 "--checkpoint-every");
  expect_refused("--checkpoint tools/CMakeLists.txt/x", "cannot write 'tools/CMakeLists.txt/x");
  // No checkpoint is there.
  expect_refused("--resume '" + folder_.path().string() + "'", "checkpoint.json: cannot be opened");
  folder_.write("checkpoint.json", "{}");
  expect_refused("--resume '" + folder_.path().string() + "'", "is not of a checkpoint");
  expect_refused("--checkpoint '" + folder_.path().string() + "'", "is not of a checkpoint");
}

}  // namespace
}  // namespace zero::ladder
