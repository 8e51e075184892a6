#include "json.hpp"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>

namespace zero::tools {
namespace {

namespace fs = std::filesystem;
using base::write_file;
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

TEST(ReadJson, SaysWhatIsWrong) {
  const testing::TestFolder folder;
  write_file(folder / "bad.json", "{\"a\": }");
  write_file(folder / "large.json", "[1e999]");
  expect_error([&] { read_json(folder / "none.json"); }, {"No such file"});
  expect_error([&] { read_json(folder / "bad.json"); }, {"bad.json' is not JSON", "line 1"});
  expect_error([&] { read_json(folder / "large.json"); }, {"large.json' is not JSON"});
  EXPECT_THROW(read_json(folder.path()), Error);
}

TEST(RunMetadata, TellsVersionsCommandAndTime) {
  const char* arguments[] = {"ladder", "--modes", "ddp,zero1"};
  const auto before = std::chrono::system_clock::now() - std::chrono::seconds(1);
  const Json run = run_metadata(3, arguments);
  const auto after = std::chrono::system_clock::now();
  for (const auto& [key, expected] : {std::pair{"project_version", R"(\d+\.\d+\.\d+.*)"},
                                      {"libtorch_version", R"(\d+\.\d+.*)"},
                                      {"date", R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"}}) {
    EXPECT_TRUE(std::regex_match(run.at(key).get<std::string>(), std::regex(expected))) << key;
  }
  EXPECT_EQ(run.at("command_line"), Json({"ladder", "--modes", "ddp,zero1"}));
  std::tm broken_down{};
  std::istringstream(run.at("date").get<std::string>()) >>
      std::get_time(&broken_down, "%Y-%m-%dT%H:%M:%SZ");
  const auto written = std::chrono::system_clock::from_time_t(::timegm(&broken_down));
  EXPECT_GE(written, before);
  EXPECT_LE(written, after);
}

}  // namespace
}  // namespace zero::tools
