// The ladder program itself, as a user or a launcher starts it, when something is wrong around it.

#include <gmock/gmock.h>

#include <algorithm>

#include <tests/support/port.hpp>
#include <tests/support/program.hpp>
#include <tests/support/token_file_writer.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// The tiny model in two modes unless `more` says otherwise, figures into `folder`.
Words ladder(const TestFolder& folder, const Words& more) {
  Words words = {ZERO_LADDER_PROGRAM,  "--seq-len", "16",
                 "--no-compute-alone", "--json",    (folder / "out.json").string()};
  for (const auto& [option, value] :
       {std::pair{"--model", "tiny"}, {"--modes", "ddp,zero3"}, {"--timeout", "10"}}) {
    if (std::find(more.begin(), more.end(), option) != more.end()) continue;
    words.insert(words.end(), {option, value});
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::map<std::string, std::string> rank_variables(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

// Two ranks started by hand, each with words of its own.
void expect_both_refuse(const Words& of_rank_0, const Words& of_rank_1,
                        const std::string& message) {
  const TestFolder folders[2];
  const int port = free_port();
  Program first(ladder(folders[0], of_rank_0), rank_variables(0, 2, port));
  Program second(ladder(folders[1], of_rank_1), rank_variables(1, 2, port));
  for (Program* program : {&first, &second}) {
    EXPECT_EQ(program->end(), 1);
    EXPECT_THAT(program->said(), HasSubstr(message));
    EXPECT_FALSE(program->group_lives());
  }
  EXPECT_FALSE(std::filesystem::exists(folders[0] / "out.json"));
}

TEST(RanksDiffer, InAnOption) {
  expect_both_refuse({"--lr", "0.1"}, {"--lr", "0.01"},
                     "rank 0 has learning rate 0.1, rank 1 has learning rate 0.01");
  expect_both_refuse({"--seed", "1"}, {"--seed", "2"}, "rank 0 has seed 1, rank 1 has seed 2");
  expect_both_refuse({"--batch", "2"}, {}, "rank 0 has batch_size 2, rank 1 has batch_size 1");
  expect_both_refuse({"--timeout", "9.5"}, {"--timeout", "10"},
                     "rank 0 has time limit 9.5, rank 1 has time limit 10");
  expect_both_refuse({}, {"--model", "llama-20m"},
                     "rank 0 has model \"tiny\", rank 1 has model \"llama-20m\"");
  expect_both_refuse({}, {"--modes", "zero1"},
                     "disagree about what to run next: rank 0 has ddp, rank 1 has zero1");
}

// What one rank alone would do beside training: the others would wait for it, or it for them.
TEST(RanksDiffer, InWhatIsSavedOrRecorded) {
  const TestFolder folder;
  const std::string place = (folder / "place").string();
  expect_both_refuse({"--save", place}, {}, "rank 0 has --save true, rank 1 has --save false");
  expect_both_refuse({"--trace", place}, {}, "rank 0 has --trace true, rank 1 has --trace false");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Other text, or the same ids made by different tokenizers: equal numbers that mean different
// words.
TEST(RanksDiffer, InTheText) {
  const TestFolder folder;
  const std::vector<std::int64_t> ids(500, 7);
  for (const std::string name : {"1", "2"}) {
    folder.write("text" + name, std::string(500, name.front()));
    write_token_file(folder / ("ids" + name),
                     stream_of(ids, /*vocabulary=*/200, std::string(64, name.front())));
  }
  for (const char* kind : {"text", "ids"}) {
    const auto file = [&](const char* number) {
      return (folder / (kind + std::string(number))).string();
    };
    expect_both_refuse({"--data", file("1")}, {"--data", file("2")},
                       "disagree about the run: rank 0 has data (tokens and tokenizer)");
  }
}

// A rank is lost while the program trains: it says so, gives no figures, and leaves nobody behind.
void expect_end_when_a_rank_is_lost(int signal, const std::string& message) {
  const TestFolder folder;
  Program program(ladder(folder, {"--steps", "2000", "--modes", "zero3", "--timeout", "2"}),
                  {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(program.says("/2000")) << program.said();  // the first line of progress
  const std::vector<pid_t> ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(::kill(ranks[1], signal), 0);
  EXPECT_EQ(program.end(), 1);
  EXPECT_THAT(program.said(), HasSubstr(message));
  EXPECT_THAT(program.said(), HasSubstr("mode zero3 failed"));
  EXPECT_FALSE(program.group_lives());
  EXPECT_FALSE(std::filesystem::exists(folder / "out.json"));
}

TEST(RankOfTheLadder, IsKilled) {
  expect_end_when_a_rank_is_lost(SIGKILL, "rank 1 was ended by signal 9");
}

TEST(RankOfTheLadder, IsStopped) {
  expect_end_when_a_rank_is_lost(SIGSTOP, "nothing from rank 1 within 2 s");
}

}  // namespace
}  // namespace zero::testing
