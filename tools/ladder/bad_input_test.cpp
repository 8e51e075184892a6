// What the ladder program does with input that is wrong: a message that says what would be right,
// an exit code that is not 0, and not one file written.

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>
#include <tests/support/port.hpp>
#include <tests/support/token_file_writer.hpp>

namespace zero::ladder {
namespace {

using testing::expect_refused;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

std::vector<std::string> split(const std::string& text, const std::string& at) {
  const std::size_t found = text.find(at);
  if (found == std::string::npos) return {text};
  std::vector<std::string> parts = split(text.substr(found + at.size()), at);
  parts.insert(parts.begin(), text.substr(0, found));
  return parts;
}

TEST(BadArguments, OfTheTableAreRefusedBeforeAnythingIsWritten) {
  std::ifstream file("tools/ladder/refused.txt");
  int lines = 0;
  std::string first;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    if (line.starts_with('[')) {
      first = line.substr(1, line.size() - 2) + " ";
      continue;
    }
    const std::vector<std::string> sides = split(line, " => ");
    ASSERT_EQ(sides.size(), 2U) << line;
    expect_refused(TestFolder(), first + sides[0], split(sides[1], " | "), ::testing::AnyOf(1, 2));
    ++lines;
  }
  EXPECT_GT(lines, 60);
}

// The variables of a launcher, as long as this lives.
class Launched {
 public:
  Launched(int rank, int world_size) {
    set("RANK", rank);
    set("WORLD_SIZE", world_size);
    set("MASTER_PORT", zero::testing::free_port());
  }
  ~Launched() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(name);
  }

 private:
  static void set(const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), /*replace=*/1);
  }
};

TEST(LaunchedRank, IsOneOfItsLauncher) {
  {
    const Launched one_of_two(/*rank=*/1, /*world_size=*/2);
    expect_refused(TestFolder(), kQuick + "--fake-process-group 4",
                   {"--fake-process-group", "start it without a launcher"});
  }
  const TestFolder folder;
  const Launched alone(/*rank=*/0, /*world_size=*/1);
  const ProcessResult one = run_ladder(folder, kQuick + "--modes ddp --nproc 4");
  EXPECT_EQ(one.code, 0) << one.said;
  EXPECT_THAT(one.said, HasSubstr("on 1 rank,"));
}

// Runs with --data FILE and expects a refusal before a rank is started.
void expect_data_refused(const TestFolder& folder, const std::string& path, const std::string& more,
                         const std::string& message) {
  const std::string said =
      expect_refused(folder, kQuick + "--data '" + path + "' " + more, {message});
  EXPECT_THAT(said, ::testing::Not(HasSubstr("rank 0"))) << "found out too late, by a rank";
}

TEST(BadData, IsRefusedBeforeARankStarts) {
  const TestFolder folder;
  const std::string empty = folder.write("empty.txt", "");
  expect_data_refused(folder, empty, "", "empty.txt: is empty");
  expect_data_refused(folder, empty, "--task reviews", "has reviews of its own");
  expect_data_refused(folder, folder.write("short.txt", "ten bytes."), "",
                      "the text has 10 tokens; one sequence of 16 takes 17");
  expect_data_refused(folder, folder.write("text.txt", std::string(40, 'a')), "--batch 4",
                      "the data set has 2 samples, one step over all ranks takes 8");
  const auto stream = [&](const std::string& name, std::int64_t id) {
    const std::vector<std::int64_t> ids(200, id);
    testing::write_token_file(folder / name, testing::stream_of(ids, /*vocabulary=*/id + 1));
    return (folder / name).string();
  };
  expect_data_refused(folder, stream("large", 299), "",
                      "the data has a vocabulary of 300 tokens, the model tiny one of 256");
}

}  // namespace
}  // namespace zero::ladder
