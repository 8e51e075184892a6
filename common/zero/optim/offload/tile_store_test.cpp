// Tiles on a disk by themselves: what is read, what is written and when, and every way in which a
// disk fails.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include <tests/support/disk.hpp>
#include <tests/support/disk_traffic.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/in_process.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/watched_disk.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/offload/tile_store.hpp>

namespace zero::optim {
namespace {

using testing::TestFolder;

constexpr std::int64_t kTile = 3 * TileFile::kAlignment;
constexpr std::int64_t kOdd = 4097;  // bytes of the last tile

class TileStoreTest : public ::testing::Test {
 protected:
  OffloadOptions options() const { return options(folder_.path()); }
  OffloadOptions options(const std::filesystem::path& folder) const {
    return {.folder = folder, .tile_bytes = kTile, .block_bytes = 4096, .says_how = false};
  }
  TestFolder folder_;
};

// Whole tiles and an odd end; each tile full of its number.
void fill(TileStore& store, int tiles) {
  std::vector<std::size_t> all;
  for (int i = 0; i < tiles; ++i) {
    store.add();
    store.grow(i + 1 < tiles ? kTile : kOdd);
    all.push_back(static_cast<std::size_t>(i));
  }
  store.stream(all, [](std::size_t tile, const at::Tensor& bytes) {
    bytes.fill_(static_cast<std::int64_t>(tile) + 1);
  });
}

std::vector<std::size_t> first_tiles(std::size_t count) {
  std::vector<std::size_t> tiles(count);
  for (std::size_t i = 0; i < count; ++i) tiles[i] = i;
  return tiles;
}

// Where the file can be reached from the outside.
std::string path_of(TileStore& store) {
  return fmt::format("/proc/self/fd/{}", store.file().descriptor());
}

TEST_F(TileStoreTest, KeepsEveryByteThroughManySteps) {
  for (const int tiles : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(tiles);
    TileStore store(options());
    fill(store, tiles);
    for (std::int64_t step = 1; step <= 5; ++step) {
      store.stream(first_tiles(static_cast<std::size_t>(tiles)), [&](std::size_t tile,
                                                                     const at::Tensor& bytes) {
        const auto used = bytes.narrow(0, 0, static_cast<int>(tile) + 1 < tiles ? kTile : kOdd);
        EXPECT_TRUE(used.eq(static_cast<std::int64_t>(tile) + step).all().item<bool>())
            << "tile " << tile << " in step " << step;
        bytes.add_(1);
      });
    }
    for (int i = 0; i < tiles; ++i) {
      EXPECT_EQ(store.read(static_cast<std::size_t>(i))[0].item<std::int64_t>(), i + 6);
    }
  }
}

TEST_F(TileStoreTest, SomeTilesAreUpdatedAndTheOthersStay) {
  TileStore store(options());
  fill(store, 5);
  store.stream({1, 4}, [](std::size_t, const at::Tensor& bytes) { bytes.add_(10); });
  store.read(2, /*to_change=*/true).fill_(100);
  const std::int64_t expected[] = {1, 12, 100, 4, 15};
  for (const std::size_t i : {4, 3, 2, 1, 0}) {
    EXPECT_EQ(store.read(i)[kOdd - 1].item<std::int64_t>(), expected[i]);
  }
}

// ---- who has a buffer when

TEST_F(TileStoreTest, ADelayOfAnyHandOverChangesNothing) {
  TileStore store(options());
  fill(store, 4);
  std::int64_t value = 1;  // of tile 0
  for (int late = -1, hand_overs = 0; late < hand_overs; ++late, ++value) {
    SCOPED_TRACE(late);
    testing::WatchedDisk watched(late);
    store.stream(first_tiles(4), [&](std::size_t tile, const at::Tensor& bytes) {
      watched.update(bytes, [&] {
        const auto used = bytes.narrow(0, 0, tile < 3 ? kTile : kOdd);
        EXPECT_TRUE(used.eq(static_cast<std::int64_t>(tile) + value).all().item<bool>()) << tile;
        bytes.add_(1);
      });
    });
    hand_overs = watched.hand_overs();
    // Three tiles of three blocks and an odd one of two: read, written, and each update.
    EXPECT_EQ(hand_overs, 2 * 2 * (3 * 3 + 2) + 4);
  }
}

// Each waits for the other here: an update for the next read to have begun, and that read and the
// write of the tile before for the update to have begun.
TEST_F(TileStoreTest, TheNextTileIsReadAndTheOneBeforeIsWrittenDuringAnUpdate) {
  TileStore store(options());
  fill(store, 4);
  std::atomic<int> updating = -1;
  std::atomic<int> reading = 0;
  const auto wait_until = [](const auto& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(holds());
  };
  const testing::Disk disk([&](const testing::Transfer& t) {
    const int tile = static_cast<int>(t.at / kTile);
    if (!t.writes) reading = std::max<int>(reading, tile);
    const int during = t.writes ? tile + 1 : tile - 1;
    if (during < 4) wait_until([&] { return updating >= during; });
    return t.as_asked();
  });
  store.stream(first_tiles(4), [&](std::size_t tile, const at::Tensor&) {
    updating = static_cast<int>(tile);
    // Its read is behind the write of the tile before last, on the same thread.
    if (tile < 3) wait_until([&] { return reading >= static_cast<int>(tile) + 1; });
  });
}

// The system has no thread for anybody: who waits for the blocks moves them.
TEST_F(TileStoreTest, WorksWithoutAnotherThread) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "LeakSanitizer needs a thread";
#endif
  ::chmod(folder_.path().c_str(), 0777);
  EXPECT_EQ(testing::run_in_process([&]() -> std::string {
              const rlimit none{0, 0};
              if (::setrlimit(RLIMIT_NPROC, &none) != 0) return "no limit";
              if (::geteuid() == 0 && ::setuid(65534) != 0) return "root has no limit";
              try {
                std::thread([] {}).join();
                return "there is a thread";
              } catch (const std::system_error&) {
              }
              TileStore store(options());
              fill(store, 4);
              for (int step = 0; step < 2; ++step) {
                store.stream(first_tiles(4),
                             [](std::size_t, const at::Tensor& bytes) { bytes.add_(1); });
              }
              std::string values;
              for (const std::size_t i : first_tiles(4)) {
                values += fmt::format(" {}", store.read(i)[kOdd - 1].item<std::int64_t>());
              }
              return values;
            }),
            " 3 4 5 6");
}

// By its own counters, and by the system's if the file is read and written past its cache.
TEST_F(TileStoreTest, MovesEachByteOnceRoundedUpToTheAlignment) {
  TileStore store(options());
  fill(store, 4);
  const std::int64_t expected = 3 * kTile + TileFile::aligned(kOdd);
  testing::DiskTraffic moved;
  for (int step = 0; step < 5; ++step) {
    const OffloadTraffic before = store.file().traffic();
    moved.begin_step();
    store.stream(first_tiles(4), [](std::size_t, const at::Tensor& bytes) { bytes.add_(1); });
    moved.end_step(expected, expected);
    EXPECT_EQ(store.file().traffic().read_bytes - before.read_bytes, expected);
    EXPECT_EQ(store.file().traffic().written_bytes - before.written_bytes, expected);
  }
  if ((::fcntl(store.file().descriptor(), F_GETFL) & O_DIRECT) == 0) return;
  moved.expect_only_what_is_counted();
}

TEST_F(TileStoreTest, HoldsTwoTilesInMemory) {
  TileStore store(options());
  const auto held = [] { return memory::snapshot()[memory::Category::kOptimizer]; };
  const std::int64_t before = held();
  fill(store, 6);
  EXPECT_EQ(held() - before, store.resident_bytes());
  EXPECT_EQ(store.resident_bytes(), 2 * (kTile + TileFile::kAlignment));
  store.stream(first_tiles(6), [&](std::size_t, const at::Tensor&) {
    EXPECT_EQ(held() - before, store.resident_bytes());
  });
}

TEST_F(TileStoreTest, LeavesNothingInItsFolder) {
  TileStore store(options());
  fill(store, 3);
  EXPECT_THAT(folder_.listing(), ::testing::IsEmpty());
}

// The file has no name: nobody can take it away, or write to that of another run.
TEST_F(TileStoreTest, TwoShareAFolderThatIsRemoved) {
  auto folder = std::make_unique<TestFolder>();
  TileStore one(options(folder->path())), other(options(folder->path()));
  fill(one, 3);
  folder.reset();
  fill(other, 5);
  EXPECT_EQ(one.read(2)[0].item<std::int64_t>(), 3);
  EXPECT_EQ(other.read(4)[0].item<std::int64_t>(), 5);
}

TEST_F(TileStoreTest, AFolderThatCannotBeWrittenToIsRefused) {
  const auto file = folder_.write("file", "");
  for (const std::filesystem::path& bad :
       {folder_ / "missing", file, std::filesystem::path("/proc")}) {
    testing::expect_error([&] { TileStore store(options(bad)); },
                          {"optimizer states cannot be kept in " + bad.string(), "written to"});
  }
}

TEST_F(TileStoreTest, AFlippedByteIsFound) {
  TileStore store(options());
  fill(store, 3);
  const int file = ::open(path_of(store).c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::pwrite(file, "x", 1, 2 * kTile + kOdd - 1), 1);
  ::close(file);
  std::vector<std::size_t> updated;
  testing::expect_error(
      [&] {
        store.stream(first_tiles(3),
                     [&](std::size_t tile, const at::Tensor&) { updated.push_back(tile); });
      },
      {folder_.path().string(), "tile 2 has other bytes than were written"});
  EXPECT_THAT(updated, ::testing::ElementsAre(0, 1));
  testing::expect_error([&] { store.read(2); }, {"tile 2 has other bytes"});
}

TEST_F(TileStoreTest, AFileThatWasCutShortIsFound) {
  TileStore store(options());
  fill(store, 3);
  ASSERT_EQ(::truncate(path_of(store).c_str(), 4096), 0);
  testing::expect_error(
      [&] { store.stream(first_tiles(3), [](std::size_t, const at::Tensor&) {}); },
      {folder_.path().string(), "tile 0 could not be read", "0 of 4096 bytes were there"});
}

TEST_F(TileStoreTest, AFullDiskIsFoundBeforeAnythingIsUpdated) {
  TileStore store(options());
  const testing::FullDisk full(2 * kTile);
  bool updated = false;
  store.add();
  store.grow(kTile);
  store.stream({0}, [](std::size_t, const at::Tensor&) {});
  for (int i = 0; i < 2; ++i) store.add();
  testing::expect_error(
      [&] {
        store.stream(first_tiles(3), [&](std::size_t, const at::Tensor&) { updated = true; });
      },
      {folder_.path().string(), fmt::format("{} bytes are needed there", 3 * kTile),
       "File too large"});
  EXPECT_FALSE(updated);
}

// A file system that takes no room in advance, full in the middle of a step.
TEST_F(TileStoreTest, AWriteThatFailsIsAnErrorOfTheStep) {
  TileStore store(options());
  fill(store, 4);
  ASSERT_EQ(::truncate(path_of(store).c_str(), 4 * kTile), 0);
  std::unique_ptr<testing::FullDisk> full;
  testing::expect_error(
      [&] {
        store.stream(first_tiles(4), [&](std::size_t tile, const at::Tensor&) {
          if (tile == 1) {
            ::truncate(path_of(store).c_str(), kTile);
            full = std::make_unique<testing::FullDisk>(kTile);
          }
        });
      },
      {folder_.path().string(), "tile "});
}

TEST_F(TileStoreTest, SignalsThatInterruptItChangeNothing) {
  TileStore store(options());
  std::atomic<int> calls = 0;
  const testing::Disk disk([&](const testing::Transfer& transfer) -> ssize_t {
    if (calls++ % 2 == 1) return transfer.as_asked();
    errno = EINTR;
    return -1;
  });
  fill(store, 4);
  for (const std::size_t i : {0, 1, 2, 3}) {
    EXPECT_TRUE(
        store.read(i).narrow(0, 0, kOdd).eq(static_cast<std::int64_t>(i) + 1).all().item<bool>());
  }
}

TEST_F(TileStoreTest, AfterAnErrorInAnUpdateItIsUsableOnceCleared) {
  TileStore store(options());
  fill(store, 4);
  testing::expect_error(
      [&] {
        store.stream(first_tiles(4), [](std::size_t tile, const at::Tensor&) {
          if (tile == 2) throw Error("no");
        });
      },
      {"no"});
  store.clear();
  fill(store, 2);
  EXPECT_EQ(store.read(1)[0].item<std::int64_t>(), 2);
}

}  // namespace
}  // namespace zero::optim
