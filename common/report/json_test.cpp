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
#include <zero/error.hpp>
#include <zero/report/json.hpp>
#include <zero/report/json_depth.hpp>
#include <zero/report/test_folder.hpp>

namespace zero::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

// The message of the zero::Error that `action` throws; "" if it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
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
  const TestFolder folder;
  const fs::path path = folder / "a/b/ladder.json";
  write_json(path, {{"world_size", 2}, {"model", "tiny"}, {"a", nullptr}});
  EXPECT_EQ(contents_of(path),
            "{\n  \"world_size\": 2,\n  \"model\": \"tiny\",\n  \"a\": null\n}\n");
  EXPECT_EQ(files_in(path.parent_path()), 1);
}

TEST(WriteJson, ReplacesAnExistingFile) {
  const TestFolder folder;
  write_json(folder / "x.json", {{"value", std::string(1000, 'x')}});
  write_json(folder / "x.json", {{"value", 1}});
  EXPECT_EQ(read_json(folder / "x.json"), Json({{"value", 1}}));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(WriteJson, WritesNumbersThatAreNotFiniteAsNull) {
  const TestFolder folder;
  write_json(folder / "x.json", {{"loss", std::nan("")}});
  EXPECT_TRUE(read_json(folder / "x.json").at("loss").is_null());
}

TEST(WriteJson, ReplacesBytesThatAreNotUtf8) {
  const TestFolder folder;
  write_json(folder / "x.json", {{"argument", "a\xff"}});
  EXPECT_EQ(read_json(folder / "x.json").at("argument"), "a\xef\xbf\xbd");
}

TEST(WriteFile, SaysWhyAFolderCannotBeMade) {
  const TestFolder folder;
  write_file(folder / "file", "x");
  const std::string message = error_of([&] { write_file(folder / "file/x.json", "{}"); });
  EXPECT_NE(message.find("cannot create the folder"), std::string::npos) << message;
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

TEST(WriteFile, RefusesTheNameOfAFolder) {
  const TestFolder folder;
  fs::create_directory(folder / "out");
  const std::string message = error_of([&] { write_file(folder / "out", "{}"); });
  EXPECT_NE(message.find("Is a directory"), std::string::npos) << message;
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
  EXPECT_NE(error_of([&] { write_file(folder / "out/", "{}"); }).find("names a folder"),
            std::string::npos);
}

TEST(WriteFile, WritesWhereALinkLeadsAndReplacesNoPipe) {
  const TestFolder folder;
  write_file(folder / "real", "old");
  fs::create_symlink(folder / "real", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "real"), "new");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& write : {std::function<void()>([&] { write_file(folder / "pipe", "x"); }),
                            std::function<void()>([&] { check_writable(folder / "pipe"); })}) {
    EXPECT_NE(error_of(write).find("no ordinary file"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(WriteFile, LeavesTheOldFileWholeIfTheDiskIsFull) {
  const TestFolder folder;
  write_file(folder / "x.json", "old");
  std::string message;
  {
    const FileSizeLimit limit(16);
    message = error_of([&] { write_file(folder / "x.json", std::string(100'000, 'n')); });
  }
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_NE(message.find("x.json"), std::string::npos) << message;
  EXPECT_EQ(contents_of(folder / "x.json"), "old");
  EXPECT_EQ(files_in(folder.path()), 1) << "the temporary file was left behind";
}

TEST(ReadJson, SaysWhatIsWrong) {
  const TestFolder folder;
  EXPECT_NE(error_of([&] { read_json(folder / "none.json"); }).find("no such file"),
            std::string::npos);
  write_file(folder / "bad.json", "{\"a\": }");
  const std::string message = error_of([&] { read_json(folder / "bad.json"); });
  EXPECT_NE(message.find("bad.json' is not JSON"), std::string::npos) << message;
  EXPECT_NE(message.find("line 1"), std::string::npos) << message;
  EXPECT_NE(error_of([&] { read_json(folder.path()); }), "");
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(ReadJson, RefusesWhatIsNestedTooDeeply) {
  const TestFolder folder;
  write_file(folder / "x.json", nested(kDeepestJson));
  EXPECT_EQ(read_json(folder / "x.json").size(), 1U);
  for (const int levels : {kDeepestJson + 1, 300'000}) {
    write_file(folder / "x.json", "{\"a\": " + nested(levels - 1) + "}");
    EXPECT_THAT(error_of([&] { read_json(folder / "x.json"); }),
                HasSubstr("x.json': its JSON is nested deeper than 64 levels"));
  }
}

TEST(ReadJson, RefusesANumberThatNoDoubleHolds) {
  const TestFolder folder;
  write_file(folder / "x.json", "[1e999]");
  EXPECT_THAT(error_of([&] { read_json(folder / "x.json"); }), HasSubstr("x.json' is not JSON"));
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
  const TestFolder folder;
  check_writable(folder / "out.json");
  check_writable(folder / "new/below/out.json");
  EXPECT_EQ(files_in(folder.path()), 0);
  write_file(folder / "out.json", "old");
  check_writable(folder / "out.json");
  EXPECT_EQ(contents_of(folder / "out.json"), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(CheckWritable, SaysWhatStandsInTheWay) {
  const TestFolder folder;
  write_file(folder / "file", "x");
  EXPECT_THAT(error_of([&] { check_writable(folder.path()); }), HasSubstr("it names a folder"));
  EXPECT_THAT(error_of([&] { check_writable(folder / "file/out.json"); }),
              HasSubstr("Not a directory"));
  EXPECT_THAT(error_of([&] { check_writable(folder / "file/below/out.json"); }),
              HasSubstr("file/below/out.json"));
  EXPECT_THAT(error_of([&] { check_writable("/proc/zero/out.json"); }),
              HasSubstr("/proc/zero/out.json"));
}

}  // namespace
}  // namespace zero::report
