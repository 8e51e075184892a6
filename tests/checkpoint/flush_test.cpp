// The order in which a save reaches the disk. A process that dies loses nothing that the system has
// been given; a machine that loses its power does, unless fsync() was called, and in the right
// order. So the calls of all ranks are noted in memory that they share.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <tests/support/hooked_communicator.hpp>

#include "one_checkpoint.hpp"
#include "system_calls.hpp"

namespace zero::testing {
namespace {

struct Call {
  bool renames;       // rename(), else fsync()
  bool old_is_there;  // whether the checkpoint before has its folder still
  char path[400];     // of the new name, or the file that is brought to the disk
};

// Shared by the ranks, which are forked.
struct Log {
  std::atomic<bool> open = false;
  std::atomic<std::size_t> count = 0;
  std::atomic<bool> may_remove = true;   // what lies in the old folder
  std::atomic<bool> disk_fails = false;  // once checkpoint.json has its name
  char old_folder[400] = {};
  Call calls[64] = {};
};

Log* shared_log = nullptr;

void note_call(bool renames, const char* path) {
  if (shared_log == nullptr || !shared_log->open) return;
  const std::size_t place = shared_log->count++;
  if (place >= std::size(shared_log->calls)) return;
  Call& call = shared_log->calls[place];
  call.renames = renames;
  call.old_is_there = ::access(shared_log->old_folder, F_OK) == 0;
  std::strncpy(call.path, path, sizeof(call.path) - 1);
}

bool has_record() {
  for (std::size_t i = 0; i < shared_log->count; ++i) {
    const Call& call = shared_log->calls[i];
    if (call.renames && std::string(call.path).ends_with("/checkpoint.json")) return true;
  }
  return false;
}

bool sync_fails() {
  return shared_log != nullptr && shared_log->open && shared_log->disk_fails && has_record();
}

void wait_to_remove(const std::string& path) {
  if (shared_log == nullptr || !shared_log->open) return;
  while (path.starts_with(shared_log->old_folder) && !shared_log->may_remove) ::sched_yield();
}

int before_call(SystemCall call, const std::string& path) {
  if (call == SystemCall::kRemove) wait_to_remove(path);
  if (call == SystemCall::kFsync || call == SystemCall::kRename) {
    note_call(call == SystemCall::kRename, path.c_str());
  }
  return call == SystemCall::kFsync && sync_fails() ? EIO : 0;
}

class Flushed : public OneCheckpoint {
 protected:
  void SetUp() override {
    void* memory =
        ::mmap(nullptr, sizeof(Log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_log = new (memory) Log;
    before_system_call = before_call;
  }
  void TearDown() override {
    before_system_call = nullptr;
    ::munmap(shared_log, sizeof(Log));
    shared_log = nullptr;
  }
};

// Positions in the log of the calls for which `is` holds.
std::vector<int> positions(const std::function<bool(const Call&)>& is) {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(shared_log->count); ++i) {
    if (is(shared_log->calls[i])) found.push_back(i);
  }
  return found;
}

// The first and the last, -1 where there is none.
int first(const std::vector<int>& positions) { return positions.empty() ? -1 : positions.front(); }
int last(const std::vector<int>& positions) { return positions.empty() ? -1 : positions.back(); }

std::vector<int> calls_of(bool renames, const std::string& name) {
  return positions([&](const Call& call) {
    return call.renames == renames && std::string(call.path).ends_with("/" + name);
  });
}

std::vector<int> renames_to(const std::string& name) { return calls_of(true, name); }
std::vector<int> syncs_of_folder(const std::string& name) { return calls_of(false, name); }

// Files are brought to the disk under the name that they have then: a dot, the name, numbers.
std::vector<int> syncs_of_unnamed(const std::string& name) {
  return positions([&](const Call& call) {
    return !call.renames && std::strstr(call.path, ("/." + name + ".").c_str()) != nullptr;
  });
}

std::string whole_log() {
  std::string text;
  for (std::size_t i = 0; i < shared_log->count; ++i) {
    text += fmt::format("{} {} {}\n", i, shared_log->calls[i].renames ? "rename to" : "fsync",
                        shared_log->calls[i].path);
  }
  return text;
}

TEST_F(Flushed, EverythingIsOnTheDiskBeforeTheRecordGetsItsName) {
  on_two_ranks([&](Session& session) {
    session.step(1);
    const fs::path old = good_ / "step-000000001";
    if (session.communicator().rank() == 0) {
      std::strncpy(shared_log->old_folder, old.c_str(), sizeof(shared_log->old_folder) - 1);
      shared_log->open = true;
    }
    session.communicator().barrier();
    io::save_checkpoint(session.strategy(), good_, note(2, kMode));
    session.communicator().barrier();
    if (session.communicator().rank() != 0) return;
    shared_log->open = false;
    ASSERT_LT(shared_log->count, std::size(shared_log->calls));

    const auto expect_in_order = [](const std::vector<int>& places) {
      EXPECT_GE(places.front(), 0) << whole_log();
      EXPECT_EQ(std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()),
                places.end())
          << whole_log();
    };
    const int committed = first(renames_to("checkpoint.json"));
    ASSERT_GT(committed, 0) << whole_log();
    for (const int rank : {0, 1}) {
      const std::string name = fmt::format("rank-{:05}-of-00002.safetensors", rank);
      expect_in_order({first(syncs_of_unnamed(name)), first(renames_to(name)),
                       last(syncs_of_folder("step-000000002")), committed});
    }
    expect_in_order({first(syncs_of_folder("good")), committed});
    expect_in_order({first(syncs_of_unnamed("checkpoint.json")), committed});
    // The old one goes when the new name has reached the disk, not before.
    const int name_synced = last(syncs_of_folder("good"));
    ASSERT_GT(name_synced, committed) << whole_log();
    EXPECT_TRUE(shared_log->calls[name_synced].old_is_there) << whole_log();
    EXPECT_FALSE(fs::exists(old));
  });
}

// Rank 0 removes it as late as it can: when rank 1 waits for it, or has returned.
TEST_F(Flushed, NoRankReturnsBeforeTheOldCheckpointIsGone) {
  on_ranks(2, [&](dist::Communicator& communicator) {
    const bool is_first = communicator.rank() == 0;
    bool saves = false;
    const Hooked hooked(communicator, [&](dist::Operation operation, dist::Purpose, bool) {
      if (!is_first && saves && operation == dist::Operation::kBarrier) {
        shared_log->may_remove = true;
      }
    });
    Session session(communicator, kMode, options_);
    session.step(0);
    io::save_checkpoint(session.strategy(), good_, note(1, kMode));
    session.step(1);
    const fs::path old = good_ / "step-000000001";
    ASSERT_TRUE(fs::exists(old));
    communicator.barrier();
    if (is_first) {
      std::strncpy(shared_log->old_folder, old.c_str(), sizeof(shared_log->old_folder) - 1);
      shared_log->may_remove = false;
      shared_log->open = true;
    }
    communicator.barrier();
    saves = true;
    io::save_checkpoint(session.strategy(), good_, note(2, kMode));
    EXPECT_FALSE(fs::exists(old));
    if (!is_first) shared_log->may_remove = true;
    communicator.barrier();
  });
}

// Its files are the only ones that checkpoint.json names.
TEST_F(Flushed, ACheckpointWhoseRecordHasItsNameIsKeptWhateverFailsThen) {
  on_two_ranks([&](Session& session) {
    session.step(1);
    if (session.communicator().rank() == 0) shared_log->disk_fails = shared_log->open = true;
    session.communicator().barrier();
    EXPECT_THAT(refusal_of_saving(session, good_, note(2, kMode)),
                HasSubstr("cannot be brought to the disk"));
    session.communicator().barrier();
    shared_log->open = false;
    EXPECT_EQ(io::load_checkpoint(session.strategy(), good_).step, 2);
  });
}

}  // namespace
}  // namespace zero::testing
