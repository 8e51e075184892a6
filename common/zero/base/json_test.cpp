#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/base/json_depth.hpp>

namespace zero::base {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

// Makes writing more than `bytes` to any file fail, as a full disk does, while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit = old_limit_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

TEST(WriteJson, KeepsTheOrderAndMakesFolders) {
  const testing::TestFolder folder;
  const fs::path path = folder / "a/b/ladder.json";
  write_json(path, {{"world_size", 2}, {"model", "tiny"}, {"a", nullptr}});
  EXPECT_EQ(testing::read_bytes(path),
            "{\n  \"world_size\": 2,\n  \"model\": \"tiny\",\n  \"a\": null\n}\n");
  EXPECT_EQ(files_in(path.parent_path()), 1);
}

TEST(WriteJson, ReplacesAnExistingFile) {
  const testing::TestFolder folder;
  write_json(folder / "x.json", {{"value", std::string(1000, 'x')}});
  write_json(folder / "x.json", {{"value", 1}});
  EXPECT_EQ(read_json(folder / "x.json"), Json({{"value", 1}}));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(WriteJson, WritesNumbersThatAreNotFiniteAsNull) {
  const testing::TestFolder folder;
  write_json(folder / "x.json", {{"loss", std::nan("")}});
  EXPECT_TRUE(read_json(folder / "x.json").at("loss").is_null());
}

TEST(WriteJson, ReplacesBytesThatAreNotUtf8) {
  const testing::TestFolder folder;
  write_json(folder / "x.json", {{"argument", "a\xff"}});
  EXPECT_EQ(read_json(folder / "x.json").at("argument"), "a\xef\xbf\xbd");
}

TEST(WriteFile, SaysWhyAFolderCannotBeMade) {
  const testing::TestFolder folder;
  write_file(folder / "file", "x");
  const std::string message = testing::error_of([&] { write_file(folder / "file/x.json", "{}"); });
  EXPECT_NE(message.find("cannot create the folder"), std::string::npos) << message;
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

TEST(WriteFile, RefusesTheNameOfAFolder) {
  const testing::TestFolder folder;
  fs::create_directory(folder / "out");
  const std::string message = testing::error_of([&] { write_file(folder / "out", "{}"); });
  EXPECT_NE(message.find("names a folder"), std::string::npos) << message;
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
  EXPECT_NE(testing::error_of([&] { write_file(folder / "out/", "{}"); }).find("names a folder"),
            std::string::npos);
}

TEST(WriteFile, WritesWhereALinkLeadsAndReplacesNoPipe) {
  const testing::TestFolder folder;
  write_file(folder / "real", "old");
  fs::create_symlink(folder / "real", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(testing::read_bytes(folder / "real"), "new");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& write : {std::function<void()>([&] { write_file(folder / "pipe", "x"); }),
                            std::function<void()>([&] { check_writable(folder / "pipe"); })}) {
    EXPECT_NE(testing::error_of(write).find("no ordinary file"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(WriteFile, LeavesTheOldFileWholeIfTheDiskIsFull) {
  const testing::TestFolder folder;
  write_file(folder / "x.json", "old");
  std::string message;
  {
    const FileSizeLimit limit(16);
    message = testing::error_of([&] { write_file(folder / "x.json", std::string(100'000, 'n')); });
  }
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_NE(message.find("x.json"), std::string::npos) << message;
  EXPECT_EQ(testing::read_bytes(folder / "x.json"), "old");
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
}

TEST(ReadJson, SaysWhatIsWrong) {
  const testing::TestFolder folder;
  EXPECT_NE(testing::error_of([&] { read_json(folder / "none.json"); }).find("no such file"),
            std::string::npos);
  write_file(folder / "bad.json", "{\"a\": }");
  const std::string message = testing::error_of([&] { read_json(folder / "bad.json"); });
  EXPECT_NE(message.find("bad.json' is not JSON"), std::string::npos) << message;
  EXPECT_NE(message.find("line 1"), std::string::npos) << message;
  EXPECT_NE(testing::error_of([&] { read_json(folder.path()); }), "");
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(ReadJson, RefusesWhatIsNestedTooDeeply) {
  const testing::TestFolder folder;
  write_file(folder / "x.json", nested(kDeepestJson));
  EXPECT_EQ(read_json(folder / "x.json").size(), 1U);
  for (const int levels : {kDeepestJson + 1, 300'000}) {
    write_file(folder / "x.json", "{\"a\": " + nested(levels - 1) + "}");
    EXPECT_THAT(testing::error_of([&] { read_json(folder / "x.json"); }),
                HasSubstr("x.json': its JSON is nested deeper than 64 levels"));
  }
}

TEST(ReadJson, RefusesANumberThatNoDoubleHolds) {
  const testing::TestFolder folder;
  write_file(folder / "x.json", "[1e999]");
  EXPECT_THAT(testing::error_of([&] { read_json(folder / "x.json"); }),
              HasSubstr("x.json' is not JSON"));
}

TEST(RunMetadata, TellsVersionsCommandAndTime) {
  const char* arguments[] = {"ladder", "--modes", "ddp,zero1"};
  const auto before = std::chrono::system_clock::now() - std::chrono::seconds(1);
  const Json run = run_metadata(3, arguments);
  const auto after = std::chrono::system_clock::now();
  EXPECT_TRUE(std::regex_match(run.at("project_version").get<std::string>(),
                               std::regex(R"(\d+\.\d+\.\d+.*)")));
  EXPECT_TRUE(
      std::regex_match(run.at("libtorch_version").get<std::string>(), std::regex(R"(\d+\.\d+.*)")));
  EXPECT_TRUE(std::regex_match(run.at("compiler").get<std::string>(),
                               std::regex(R"((g\+\+|clang) \d+.*)")));
  EXPECT_EQ(run.at("command_line"), Json({"ladder", "--modes", "ddp,zero1"}));
  EXPECT_GE(run.at("cores").get<int>(), 1);

  const std::string date = run.at("date");
  ASSERT_TRUE(std::regex_match(date, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << date;
  std::tm broken_down{};
  std::istringstream(date) >> std::get_time(&broken_down, "%Y-%m-%dT%H:%M:%SZ");
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
  EXPECT_THAT(testing::error_of([&] { check_writable(folder.path()); }),
              HasSubstr("it names a folder"));
  EXPECT_THAT(testing::error_of([&] { check_writable(folder / "file/out.json"); }),
              HasSubstr("Not a directory"));
  EXPECT_THAT(testing::error_of([&] { check_writable(folder / "file/below/out.json"); }),
              HasSubstr("file/below/out.json"));
  EXPECT_THAT(testing::error_of([&] { check_writable("/proc/zero/out.json"); }),
              HasSubstr("/proc/zero/out.json"));
}

}  // namespace
}  // namespace zero::base
