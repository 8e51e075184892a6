// Tiles on a disk by themselves: what is read, what is written and when, and every way in which a
// disk fails.

#include "tile_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <thread>

#include <tests/support/disk.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/in_process.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/watched_disk.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::optim {
namespace {

using testing::TestFolder;
using testing::Transfer;

constexpr std::int64_t kTile = 3 * TileFile::kAlignment;
constexpr std::int64_t kOdd = 4097;  // bytes of the last tile

OffloadOptions in(const std::filesystem::path& folder) {
  return {.folder = folder, .tile_bytes = kTile, .says_how = false};
}

std::vector<std::size_t> first_tiles(std::size_t count) {
  std::vector<std::size_t> tiles(count);
  std::iota(tiles.begin(), tiles.end(), std::size_t{0});
  return tiles;
}

// All tiles are full of their numbers and `more`.
void fill(TileFile& file, std::int64_t more = 1) {
  file.stream(first_tiles(file.size()), [&](std::size_t tile, const at::Tensor& bytes) {
    bytes.fill_(static_cast<std::int64_t>(tile) + more);
  });
}

// Whole tiles and an odd end.
void make_tiles(TileFile& file, std::size_t tiles) {
  while (file.size() < tiles) {
    file.add();
    file.grow(file.size() < tiles ? kTile : kOdd);
  }
  fill(file);
}

// Adds 1 to all bytes. Each tile must be full of its number and `more`.
void step(TileFile& file, std::int64_t more) {
  file.stream(first_tiles(file.size()), [&](std::size_t tile, const at::Tensor& bytes) {
    const auto used = bytes.narrow(0, 0, tile + 1 < file.size() ? kTile : kOdd);
    EXPECT_TRUE(used.eq(static_cast<std::int64_t>(tile) + more).all().item<bool>()) << tile;
    bytes.add_(1);
  });
}

std::int64_t last_byte(TileFile& file, std::size_t tile) {
  return file.read(tile)[kOdd - 1].item<std::int64_t>();
}

TEST(TileFile, KeepsEveryByteThroughManySteps) {
  const TestFolder folder;
  for (const std::size_t tiles : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(tiles);
    TileFile file(in(folder.path()));
    make_tiles(file, tiles);
    for (std::int64_t more = 1; more <= 5; ++more) step(file, more);
    file.stream({tiles - 1}, [](std::size_t, const at::Tensor& bytes) { bytes.add_(10); });
    file.read(0, /*to_change=*/true).add_(100);
    for (std::size_t i = tiles; i-- > 0;) {
      const int expected = 6 + (i + 1 == tiles ? 10 : 0) + (i == 0 ? 100 : 0);
      EXPECT_EQ(last_byte(file, i), static_cast<std::int64_t>(i) + expected);
    }
  }
}

TEST(TileFile, ADelayOfAnyHandOverChangesNothing) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 4);
  std::int64_t value = 1;  // of tile 0
  for (int late = -1, hand_overs = 0; late < hand_overs; ++late, ++value) {
    SCOPED_TRACE(late);
    testing::WatchedDisk watched(late);
    file.stream(first_tiles(4), [&](std::size_t tile, const at::Tensor& bytes) {
      watched.update(bytes, [&] {
        const auto used = bytes.narrow(0, 0, tile < 3 ? kTile : kOdd);
        EXPECT_TRUE(used.eq(static_cast<std::int64_t>(tile) + value).all().item<bool>()) << tile;
        bytes.add_(1);
      });
    });
    hand_overs = watched.hand_overs();
    EXPECT_EQ(hand_overs, 4 * (2 + 2 + 1));  // each tile is read, written and updated
  }
}

// Each waits for the other here: an update for the next read to have begun, and that read and the
// write of the tile before for the update to have begun.
TEST(TileFile, ReadsTheNextTileAndWritesTheOneBeforeDuringAnUpdate) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 4);
  std::atomic<int> updating = -1;
  std::atomic<int> reading = 0;
  const auto wait_until = [](const auto& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(holds());
  };
  const testing::Disk disk([&](const Transfer& t) {
    const int tile = static_cast<int>(t.at / kTile);
    if (!t.writes) reading = std::max<int>(reading, tile);
    const int during = t.writes ? tile + 1 : tile - 1;
    if (during < 4) wait_until([&] { return updating >= during; });
    return t.as_asked();
  });
  file.stream(first_tiles(4), [&](std::size_t tile, const at::Tensor&) {
    updating = static_cast<int>(tile);
    if (tile < 3) wait_until([&] { return reading >= static_cast<int>(tile) + 1; });
  });
}

// The system has no thread for anybody: who waits for the tiles moves them.
TEST(TileFile, WorksWithoutAnotherThread) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "LeakSanitizer needs a thread";
#endif
  const TestFolder folder;
  ::chmod(folder.path().c_str(), 0777);
  EXPECT_EQ(testing::run_in_process([&]() -> std::string {
              const rlimit none{0, 0};
              if (::setrlimit(RLIMIT_NPROC, &none) != 0) return "no limit";
              if (::geteuid() == 0 && ::setuid(65534) != 0) return "root has no limit";
              try {
                std::thread([] {}).join();
                return "there is a thread";
              } catch (const std::system_error&) {
              }
              TileFile file(in(folder.path()));
              make_tiles(file, 4);
              for (std::int64_t more = 1; more < 3; ++more) step(file, more);
              return fmt::format("{} {}", last_byte(file, 0), last_byte(file, 3));
            }),
            "3 6");
}

// By its own counters, and as the system is asked.
TEST(TileFile, MovesEachByteOnceRoundedUpToTheAlignment) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 4);
  const OffloadTraffic before = file.traffic();
  std::atomic<std::int64_t> read = 0, written = 0;
  const testing::Disk disk([&](const Transfer& t) {
    (t.writes ? written : read) += static_cast<std::int64_t>(t.bytes);
    return t.as_asked();
  });
  for (std::int64_t more = 1; more < 6; ++more) step(file, more);
  constexpr std::int64_t kExpected = 5 * (3 * kTile + 8192);
  EXPECT_EQ(read, kExpected);
  EXPECT_EQ(written, kExpected);
  EXPECT_EQ(file.traffic().read_bytes - before.read_bytes, kExpected);
  EXPECT_EQ(file.traffic().written_bytes - before.written_bytes, kExpected);
}

// The file has no name: nobody can take it away, or write to that of another run.
// Each begins behind the one before, and two buffers have room for the largest.
TEST(TileFile, HasTilesOfTheirOwnSizes) {
  const TestFolder folder;
  OffloadOptions options = in(folder.path());
  options.tile_bytes = 0;
  TileFile file(options, memory::Category::kParameters);
  const std::vector<std::int64_t> sizes = {5, 2 * kTile, 4096, kOdd};
  for (const std::int64_t size : sizes) file.add(size);
  EXPECT_EQ(file.resident_bytes(), 2 * (2 * kTile + TileFile::kAlignment));
  const std::int64_t before = memory::snapshot()[memory::Category::kParameters];
  fill(file);
  EXPECT_EQ(memory::snapshot()[memory::Category::kParameters] - before, file.resident_bytes());
  struct stat status {};
  ASSERT_EQ(::fstat(file.descriptor(), &status), 0);
  EXPECT_EQ(status.st_size, 4096 + 2 * kTile + 4096 + TileFile::aligned(kOdd));
  EXPECT_EQ(file.traffic().written_bytes, status.st_size);
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const at::Tensor used = file.read(i).narrow(0, 0, sizes[i]);
    EXPECT_TRUE(used.eq(static_cast<std::int64_t>(i) + 1).all().item<bool>()) << i;
  }
}

TEST(TileFile, WritesWhatItHasLentOnlyIfThatHasChanged) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 2);
  const std::int64_t before = file.traffic().written_bytes;
  for (const std::size_t tile : {0, 1, 0}) file.lend(tile);
  EXPECT_EQ(file.traffic().written_bytes, before);
  file.lend(0).add_(1);
  EXPECT_EQ(last_byte(file, 1), 2);
  EXPECT_EQ(file.traffic().written_bytes, before + kTile);
  EXPECT_EQ(last_byte(file, 0), 2);
}

TEST(TileFile, TwoShareAFolderThatIsRemoved) {
  auto folder = std::make_unique<TestFolder>();
  TileFile one(in(folder->path())), other(in(folder->path()));
  make_tiles(one, 3);
  EXPECT_THAT(folder->listing(), ::testing::IsEmpty());
  folder.reset();
  make_tiles(other, 5);
  EXPECT_EQ(last_byte(one, 2), 3);
  EXPECT_EQ(last_byte(other, 4), 5);
}

TEST(TileFile, AFolderThatCannotBeWrittenToIsRefused) {
  const TestFolder folder;
  const auto file = folder.write("file", "");
  for (const std::filesystem::path& bad :
       {folder / "missing", file, std::filesystem::path("/proc")}) {
    testing::expect_error([&] { TileFile tiles(in(bad)); },
                          {"optimizer states cannot be kept in " + bad.string(), "written to"});
  }
}

// What goes wrong with a file of three tiles, what a step then says, and how many tiles it updates.
struct Fault {
  const char* name;
  std::function<void(TileFile& file)> happens;
  std::function<ssize_t(const Transfer& transfer)> disk;
  std::string says;
  std::size_t updates;
};

std::vector<Fault> faults() {
  const auto nothing = [](TileFile&) {};
  const auto works = [](const Transfer& t) { return t.as_asked(); };
  const auto fails = [](bool writes, std::int64_t at) {
    return [=](const Transfer& t) -> ssize_t {
      if (t.writes != writes || t.at != at) return t.as_asked();
      errno = writes ? ENOSPC : EIO;
      return -1;
    };
  };
  const auto spoil = [](TileFile& file) {
    const int other =
        ::open(fmt::format("/proc/self/fd/{}", file.descriptor()).c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(::pwrite(other, "x", 1, 2 * kTile + kOdd - 1), 1);
    ::close(other);
  };
  const auto cut = [](TileFile& file) { EXPECT_EQ(::ftruncate(file.descriptor(), 4096), 0); };
  return {
      {"a flipped byte", spoil, works, "tile 2 has other bytes than were written", 2},
      {"cut short", cut, works, "tile 0 could not be read: 4096 of 12288 bytes were there", 0},
      {"a read", nothing, fails(false, kTile), "tile 1 could not be read: Input/output error", 1},
      {"a write", nothing, fails(true, 0), "tile 0 could not be written: No space left", 2},
      {"the last write", nothing, fails(true, 2 * kTile), "tile 2 could not be written", 3}};
}

TEST(TileFile, EachFaultOfADiskIsAnErrorAndTheFileIsUsableOnceItForgets) {
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    const TestFolder folder;
    TileFile file(in(folder.path()));
    make_tiles(file, 3);
    fault.happens(file);
    std::size_t updated = 0;
    {
      const testing::Disk disk(fault.disk);
      testing::expect_error(
          [&] { file.stream(first_tiles(3), [&](std::size_t, const at::Tensor&) { ++updated; }); },
          {"optimizer states in " + folder.path().string(), fault.says});
    }
    EXPECT_EQ(updated, fault.updates);
    file.forget();
    fill(file);
    step(file, 1);
    EXPECT_EQ(last_byte(file, 2), 4);
  }
}

TEST(TileFile, AFullDiskIsFoundBeforeAnythingIsUpdated) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 2);
  const testing::FullDisk full(2 * kTile);
  file.add();
  bool updated = false;
  testing::expect_error(
      [&] { file.stream({0}, [&](std::size_t, const at::Tensor&) { updated = true; }); },
      {folder.path().string(), fmt::format("{} bytes are needed there", 3 * kTile),
       "File too large"});
  EXPECT_FALSE(updated);
}

// Nothing moves any more when the error leaves.
TEST(TileFile, AnErrorOfAnUpdateWaitsForTheDisk) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  make_tiles(file, 4);
  std::atomic<int> moving = 0;
  const testing::Disk disk([&](const Transfer& t) {
    ++moving;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // so that two could overlap
    const ssize_t done = t.as_asked();
    --moving;
    return done;
  });
  testing::expect_error(
      [&] {
        file.stream(first_tiles(4), [&](std::size_t, const at::Tensor&) {
          while (moving == 0) std::this_thread::yield();
          throw Error("no");
        });
      },
      {"no"});
  EXPECT_EQ(moving, 0);
}

TEST(TileFile, SignalsThatInterruptItChangeNothing) {
  const TestFolder folder;
  TileFile file(in(folder.path()));
  std::atomic<int> calls = 0;
  const testing::Disk disk([&](const Transfer& transfer) -> ssize_t {
    if (calls++ % 2 == 1) return transfer.as_asked();
    errno = EINTR;
    return -1;
  });
  make_tiles(file, 4);
  step(file, 1);
  EXPECT_EQ(last_byte(file, 3), 5);
}

}  // namespace
}  // namespace zero::optim
