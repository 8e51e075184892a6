#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <regex>
#include <sstream>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/json.hpp>
#include <zero/base/json_depth.hpp>

namespace zero::base {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(WriteJson, KeepsTheOrderAndMakesFolders) {
  const testing::TestFolder folder;
  const fs::path path = folder / "a/b/ladder.json";
  write_json(path, {{"world_size", 2}, {"model", "tiny"}, {"a", nullptr}});
  EXPECT_EQ(testing::read_bytes(path),
            "{\n  \"world_size\": 2,\n  \"model\": \"tiny\",\n  \"a\": null\n}\n");
  EXPECT_EQ(files_in(path.parent_path()), 1);
}

TEST(WriteJson, ReplacesAnExistingFileAndWhatJsonCannotHold) {
  const testing::TestFolder folder;
  write_json(folder / "x.json", {{"value", std::string(1000, 'x')}});
  write_json(folder / "x.json", {{"loss", std::nan("")}, {"argument", "a\xff"}});
  EXPECT_EQ(read_json(folder / "x.json"), Json({{"loss", nullptr}, {"argument", "a\xef\xbf\xbd"}}));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(WriteFile, SaysWhyAFolderCannotBeMade) {
  const testing::TestFolder folder;
  write_file(folder / "file", "x");
  expect_error([&] { write_file(folder / "file/x.json", "{}"); },
               {"cannot create the folder", "Not a directory"});
}

TEST(WriteFile, RefusesTheNameOfAFolder) {
  const testing::TestFolder folder;
  fs::create_directory(folder / "out");
  for (const char* name : {"out", "out/"}) {
    expect_error([&] { write_file(folder / name, "{}"); }, {"names a folder"});
  }
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
}

TEST(WriteFile, WritesWhereALinkLeadsAndReplacesNoPipe) {
  const testing::TestFolder folder;
  write_file(folder / "real", "old");
  fs::create_symlink(folder / "real", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(testing::read_bytes(folder / "real"), "new");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { write_file(folder / "pipe", "x"); }, {"no ordinary file"});
  expect_error([&] { check_writable(folder / "pipe"); }, {"no ordinary file"});
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(WriteFile, LeavesTheOldFileWholeIfTheDiskIsFull) {
  const testing::TestFolder folder;
  write_file(folder / "x.json", "old");
  {
    const testing::FullDisk full(16);
    expect_error([&] { write_file(folder / "x.json", std::string(100'000, 'n')); },
                 {"File too large", "x.json"});
  }
  EXPECT_EQ(testing::read_bytes(folder / "x.json"), "old");
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
}

TEST(ReadJson, SaysWhatIsWrong) {
  const testing::TestFolder folder;
  write_file(folder / "bad.json", "{\"a\": }");
  write_file(folder / "large.json", "[1e999]");
  expect_error([&] { read_json(folder / "none.json"); }, {"No such file"});
  expect_error([&] { read_json(folder / "bad.json"); }, {"bad.json' is not JSON", "line 1"});
  expect_error([&] { read_json(folder / "large.json"); }, {"large.json' is not JSON"});
  EXPECT_THROW(read_json(folder.path()), Error);
}

TEST(ReadJson, RefusesWhatIsNestedTooDeeply) {
  const testing::TestFolder folder;
  write_file(folder / "x.json", testing::nested_json(kDeepestJson));
  EXPECT_EQ(read_json(folder / "x.json").size(), 1U);
  for (const int levels : {kDeepestJson + 1, 300'000}) {
    write_file(folder / "x.json", "{\"a\": " + testing::nested_json(levels - 1) + "}");
    expect_error([&] { read_json(folder / "x.json"); },
                 {"x.json': its JSON is nested deeper than 64 levels"});
  }
}

TEST(RunMetadata, TellsVersionsCommandAndTime) {
  const char* arguments[] = {"ladder", "--modes", "ddp,zero1"};
  const auto before = std::chrono::system_clock::now() - std::chrono::seconds(1);
  const Json run = run_metadata(3, arguments);
  const auto after = std::chrono::system_clock::now();
  for (const auto& [key, expected] : {std::pair{"project_version", R"(\d+\.\d+\.\d+.*)"},
                                      {"libtorch_version", R"(\d+\.\d+.*)"},
                                      {"compiler", R"((g\+\+|clang) \d+.*)"},
                                      {"date", R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"}}) {
    EXPECT_TRUE(std::regex_match(run.at(key).get<std::string>(), std::regex(expected))) << key;
  }
  EXPECT_EQ(run.at("command_line"), Json({"ladder", "--modes", "ddp,zero1"}));
  EXPECT_GE(run.at("cores").get<int>(), 1);
  std::tm broken_down{};
  std::istringstream(run.at("date").get<std::string>()) >>
      std::get_time(&broken_down, "%Y-%m-%dT%H:%M:%SZ");
  const auto written = std::chrono::system_clock::from_time_t(::timegm(&broken_down));
  EXPECT_GE(written, before);
  EXPECT_LE(written, after);
}

TEST(CheckWritable, LeavesNothingBehind) {
  const testing::TestFolder folder;
  check_writable(folder / "out.json");
  check_writable(folder / "new/below/out.json");
  EXPECT_EQ(files_in(folder.path()), 0);
  write_file(folder / "out.json", "old");
  check_writable(folder / "out.json");
  EXPECT_EQ(testing::read_bytes(folder / "out.json"), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(CheckWritable, SaysWhatStandsInTheWay) {
  const testing::TestFolder folder;
  write_file(folder / "file", "x");
  expect_error([&] { check_writable(folder.path()); }, {"it names a folder"});
  expect_error([&] { check_writable(folder / "file/out.json"); }, {"Not a directory"});
  expect_error([&] { check_writable(folder / "file/below/out.json"); }, {"file/below/out.json"});
  expect_error([&] { check_writable("/proc/zero/out.json"); }, {"/proc/zero/out.json"});
}

}  // namespace
}  // namespace zero::base
