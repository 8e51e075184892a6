// Real disks that are full or read-only: a file system in memory, of a few pages, that only this
// process and its ranks see. Needs root, or user namespaces; skipped, with the reason, without.
// (save_failure_test.cpp has the same failures by limits and permissions, which need neither.)
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include <zero/base/error.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

constexpr std::int64_t kPage = 4096;

// From now on mounts of this process are its own. Root may do that; others may where they are root
// of a user namespace.
bool own_mounts() {
  const auto user = ::getuid();
  const auto group = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    write("/proc/self/setgroups", "deny");
    write("/proc/self/uid_map", fmt::format("0 {} 1", user));
    write("/proc/self/gid_map", fmt::format("0 {} 1", group));
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool mount_memory(const fs::path& path, std::int64_t pages) {
  return ::mount("tmpfs", path.c_str(), "tmpfs", 0,
                 fmt::format("size={}", pages * kPage).c_str()) == 0;
}

// Tried in a process of its own: namespaces are for life.
bool possible(const fs::path& path) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(own_mounts() && mount_memory(path, 8) ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Disk : public OneCheckpoint {
 protected:
  void SetUp() override {
    fs::create_directory(disk_);
    if (!possible(disk_)) {
      GTEST_SKIP() << "NO DISK OF ITS OWN: this process may not mount a file system in a mount "
                      "namespace (root, or unprivileged user namespaces, are needed)";
    }
    ASSERT_TRUE(own_mounts());
    ASSERT_TRUE(mount_memory(disk_, /*pages=*/256));
  }
  void TearDown() override { ::umount2(disk_.c_str(), MNT_DETACH); }

  // Leaves so many pages free.
  void fill(std::int64_t free_pages) const {
    const std::string page(kPage, 'x');
    const int file = ::open((disk_ / "filler").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    std::int64_t size = 0;
    while (::write(file, page.data(), page.size()) == kPage) size += kPage;
    ASSERT_EQ(::ftruncate(file, std::max<std::int64_t>(0, size - free_pages * kPage)), 0);
    ::close(file);
  }

  const fs::path disk_ = folder_ / "disk";
  const fs::path run_ = disk_ / "run";
};

TEST_F(Disk, FullAtAnyPointOfSaving) {
  on_ranks(2, [&](dist::Communicator& communicator) {
    Session session(communicator, kMode, options_);
    session.step(0);
    io::save_checkpoint(session.strategy(), run_, note(1, kMode));
    const WholeState of_step_1 = whole_state(session);
    std::set<std::string> where;
    // A page more each time, until it is enough.
    for (std::int64_t pages = 0; pages < 200; ++pages) {
      session.step(1);
      if (communicator.rank() == 0) fill(pages);
      communicator.barrier();
      const std::string message = refusal_of_saving(session, run_, note(2, kMode));
      communicator.barrier();
      if (message.empty()) break;
      EXPECT_THAT(message, HasSubstr("No space left on device"));
      where.insert(message.find("checkpoint.json") == std::string::npos ? "a rank's file"
                                                                        : "checkpoint.json");
      EXPECT_EQ(std::distance(fs::directory_iterator(run_), fs::directory_iterator()), 2)
          << "what was begun stayed, with " << pages << " pages";
      EXPECT_EQ(io::load_checkpoint(session.strategy(), run_).step, 1);
      EXPECT_TRUE(same_state(whole_state(session), of_step_1));
    }
    EXPECT_THAT(where, ::testing::UnorderedElementsAre("a rank's file", "checkpoint.json"));
    EXPECT_EQ(io::load_checkpoint(session.strategy(), run_).step, 2);
  });
}

}  // namespace
}  // namespace zero::testing
