#include <sys/stat.h>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/atomic_file.hpp>

namespace zero::base {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
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
