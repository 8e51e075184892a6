// A rank's shards in files, by themselves: who has the bytes when.

#include <memory>
#include <vector>

#include <tests/support/test_folder.hpp>
#include <tests/support/watched_disk.hpp>
#include <zero/train/flat/shard_file.hpp>

namespace zero::train {
namespace {

constexpr std::size_t kFiles = 4;

// In blocks of 4 KiB, 2 to 5 of them. Each file is full of its number.
std::vector<std::unique_ptr<ShardFile>> files_in(const testing::TestFolder& folder,
                                                 memory::StoragePool& pool) {
  std::vector<std::unique_ptr<ShardFile>> files;
  for (std::size_t i = 0; i < kFiles; ++i) {
    files.push_back(std::make_unique<ShardFile>(
        optim::OffloadOptions{.folder = folder.path(), .block_bytes = 4096, .says_how = false},
        5000 + 4096 * static_cast<std::int64_t>(i), pool));
    files.back()->bytes().fill_(static_cast<std::int64_t>(i));
    files.back()->leave();
  }
  return files;
}

// Each byte of file i was i, and was changed so many times.
void expect_changed(const ShardFile& file, std::size_t i, std::int64_t times) {
  EXPECT_TRUE(file.bytes().eq(static_cast<std::int64_t>(i) + times).all().item<bool>()) << i;
}

// As in FlatParameterList::update().
TEST(ShardFileTest, ADelayOfAnyHandOverInAnUpdateChangesNothing) {
  const testing::TestFolder folder;
  memory::StoragePool pool;
  const auto files = files_in(folder, pool);
  std::int64_t times = 0;
  for (int late = -1, hand_overs = 0; late < hand_overs; ++late, ++times) {
    SCOPED_TRACE(late);
    testing::WatchedDisk watched(late);
    ShardFile* writing = nullptr;
    for (std::size_t i = 0; i < kFiles; ++i) {
      files[i]->read_ahead();
      if (i + 1 < kFiles) files[i + 1]->read_ahead();
      files[i]->bring();
      watched.update(files[i]->bytes(), [&] {
        expect_changed(*files[i], i, times);
        files[i]->bytes().add_(1);
      });
      if (writing != nullptr) writing->finish();
      writing = files[i].get();
      writing->write_behind();
    }
    writing->finish();
    hand_overs = watched.hand_overs();
    // 2 + 3 + 4 + 5 blocks are read and written; and each update.
    EXPECT_EQ(hand_overs, 2 * 2 * 14 + 4);
  }
}

// A program has written into one of the shards.
TEST(ShardFileTest, ADelayOfAnyHandOverInAPassChangesNothing) {
  const testing::TestFolder folder;
  memory::StoragePool pool;
  const auto files = files_in(folder, pool);
  std::int64_t times = 0;  // of the last file
  for (int late = -1, hand_overs = 0; late < hand_overs; ++late) {
    SCOPED_TRACE(late);
    testing::WatchedDisk watched(late);
    for (std::size_t i = 0; i < kFiles; ++i) {
      files[i]->read_ahead();
      if (i + 1 < kFiles) files[i + 1]->read_ahead();
      files[i]->bring();
      watched.update(files[i]->bytes(), [&] {
        expect_changed(*files[i], i, i + 1 < kFiles ? 0 : times);
        if (i + 1 == kFiles) files[i]->bytes().add_(1), ++times;
      });
      files[i]->leave();
    }
    hand_overs = watched.hand_overs();
    EXPECT_EQ(hand_overs, 2 * (14 + 5) + 4);
  }
}

}  // namespace
}  // namespace zero::train
