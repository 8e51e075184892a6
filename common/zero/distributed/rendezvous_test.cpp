// Where ranks meet, when one of them has ended.

#include <gmock/gmock.h>

#include <zero/base/error.hpp>
#include <zero/distributed/store/folder_store.hpp>
#include <zero/distributed/store/rendezvous.hpp>
#include <zero/distributed/store/watched_store.hpp>

namespace zero::dist {
namespace {

TEST(WatchedStore, WaitsForNothingAfterAFailureButHasWhatWasSaidBefore) {
  const Rendezvous rendezvous;
  WatchedStore store("ranks", c10::make_intrusive<FolderStore>(rendezvous.folder()));
  store.setTimeout(std::chrono::minutes(5));
  const std::vector<std::uint8_t> word = {'h', 'e', 'r', 'e'};
  store.set("word of rank 1", word);
  rendezvous.say_failed("rank 1 was ended by signal 9");
  EXPECT_EQ(store.get("word of rank 1"), word);
  const auto started = std::chrono::steady_clock::now();
  try {
    store.get("next word of rank 1");
    FAIL() << "nobody has said that";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 was ended by signal 9");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::minutes(1));
}

}  // namespace
}  // namespace zero::dist
