// A save that fails says why on every rank and leaves the checkpoint before it.
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <set>

#include <tests/support/hooked_optimizer.hpp>

#include "one_checkpoint.hpp"
#include "system_calls.hpp"

namespace zero::testing {
namespace {

class NotSaved : public OneCheckpoint {};

// After a save of step 2 that failed: its reason on every rank, no trace of it, and step 1 is
// whole.
void expect_step_1_kept(Session& session, const fs::path& folder, const std::string& message,
                        const std::string& reason) {
  EXPECT_THAT(message, HasSubstr(reason));
  session.communicator().barrier();  // rank 0 has removed what was begun
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("checkpoint.json", "step-000000001"));
  session.communicator().barrier();
  EXPECT_EQ(io::load_checkpoint(session.strategy(), folder).step, 1);
}

TEST_F(NotSaved, ToAFullDisk) {
  options_.model.width = 128;  // each rank's file is larger than the limit below
  on_two_ranks([&](Session& session) {
    for (const int full : {0, 1}) {  // one rank's files may have no more than 100 kB
      std::optional<FullDisk> disk;
      if (session.communicator().rank() == full) disk.emplace(100'000);
      const std::string message = refusal_of_saving(session, good_, note(2, kMode));
      disk.reset();
      expect_step_1_kept(session, good_, message, fmt::format("rank {}: ", full));
      EXPECT_THAT(message, HasSubstr("has space"));
    }
    io::save_checkpoint(session.strategy(), good_, note(2, kMode));
    EXPECT_EQ(io::load_checkpoint(session.strategy(), good_).step, 2);
  });
}

// When a rank's file is written, or the record of all.
TEST_F(NotSaved, ToADiskThatIsFullAtOneOfItsFiles) {
  on_two_ranks([&](Session& session) {
    for (const std::string file : {"/.rank-00000", "/.checkpoint.json"}) {
      before_system_call = [&file](SystemCall call, const std::string& path) {
        return call == SystemCall::kFallocate && path.find(file) != path.npos ? ENOSPC : 0;
      };
      const std::string message = refusal_of_saving(session, good_, note(2, kMode));
      before_system_call = nullptr;
      expect_step_1_kept(session, good_, message, "No space left on device");
    }
  });
}

TEST_F(NotSaved, AsTheFirstOfItsFolder) {
  options_.model.width = 128;
  on_two_ranks([&](Session& session) {
    const fs::path first = folder_ / "first";
    {
      const FullDisk disk(100'000);
      refusal_of_saving(session, first, note(2, kMode));
    }
    session.communicator().barrier();
    EXPECT_TRUE(fs::is_empty(first));
  });
}

TEST_F(NotSaved, IsNotWhatSignalsMakeOfIt) {
  on_two_ranks([&](Session& session) {
    std::set<std::string> interrupted;  // each call of a file once
    before_system_call = [&](SystemCall call, const std::string& path) {
      const bool may_be = call == SystemCall::kFallocate || call == SystemCall::kFsync;
      return may_be && interrupted.insert(fmt::format("{}{}", static_cast<int>(call), path)).second
                 ? EINTR
                 : 0;
    };
    io::save_checkpoint(session.strategy(), good_, note(2, kMode));
    before_system_call = nullptr;
    EXPECT_GE(interrupted.size(), 2U);
    EXPECT_EQ(io::load_checkpoint(session.strategy(), good_).step, 2);
  });
}

// Root may write anywhere: from now on this rank may not.
void obey_permissions() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
  data[0].effective &= ~(1U << CAP_DAC_OVERRIDE);
  ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
}

TEST_F(NotSaved, ToAFolderThatCannotBeWrittenTo) {
  on_two_ranks([&](Session& session) {
    if (session.communicator().rank() == 0) fs::permissions(good_, static_cast<fs::perms>(0555));
    session.communicator().barrier();
    obey_permissions();
    const std::string message = refusal_of_saving(session, good_, note(2, kMode));
    const std::string below = refusal_of_saving(session, good_ / "new", note(2, kMode));
    expect_step_1_kept(session, good_, message, "Permission denied");
    EXPECT_THAT(below, HasSubstr("cannot be made"));
    session.communicator().barrier();
    if (session.communicator().rank() == 0) fs::permissions(good_, static_cast<fs::perms>(0755));
  });
}

TEST_F(NotSaved, WithNotesThatDifferOrAreNotText) {
  on_two_ranks([&](Session& session) {
    const int rank = session.communicator().rank();
    expect_step_1_kept(session, good_, refusal_of_saving(session, good_, note(2 + rank, kMode)),
                       "what the checkpoint notes of the run");
    io::CheckpointInfo info = note(2, kMode);
    info.random = "\xff\xfe";
    expect_step_1_kept(session, good_, refusal_of_saving(session, good_, info), "not UTF-8");
    expect_step_1_kept(session, good_, refusal_of_saving(session, good_, note(-1, kMode)),
                       "the step is -1; it must be from 0");
  });
}

TEST_F(NotSaved, OverSomethingElse) {
  on_two_ranks([&](Session& session) {
    const fs::path site = folder_ / "site";
    if (session.communicator().rank() == 0) {
      fs::create_directory(site);
      write(site / "checkpoint.json", "{\"name\": \"a web page\"}");
    }
    session.communicator().barrier();
    EXPECT_THAT(refusal_of_saving(session, site, note(2, kMode)),
                HasSubstr("is not of a checkpoint"));
    EXPECT_EQ(read_bytes(site / "checkpoint.json"), "{\"name\": \"a web page\"}");
    EXPECT_EQ(std::distance(fs::directory_iterator(site), fs::directory_iterator()), 1);
  });
}

TEST(CheckpointOfAnotherOptimizer, IsRefusedWhereItsStateIsNotKnown) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    SessionOptions options = checkpoint_options();
    options.optimizer = hooked(options.optimizer, [] {});  // which says nothing of its settings
    Session session(communicator, "zero1", options);
    session.step(0);
    EXPECT_THAT(refusal_of_saving(session, folder / "run", note(1, "zero1")),
                HasSubstr("this optimizer does not show all of its state"));
    EXPECT_FALSE(fs::exists(folder / "run"));
  });
}

TEST(CheckpointFolder, HoldsOneCheckpointAndWhatIsNotOurs) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    Session session(communicator, "ddp", checkpoint_options());
    const bool first = communicator.rank() == 0;
    if (first) {
      fs::create_directories(folder / "run/step-000000007");
      write(folder / "run/step-000000007/notes.txt", "mine");
      fs::create_directories(folder / "run/step-000000003");  // left by a save that died
      write(folder / "run/step-000000003/.rank-00000-of-00002.safetensors.99.0", "half");
      write(folder / "run/.checkpoint.json.99.0", "half");
    }
    communicator.barrier();
    for (const int step : {3, 3, 4}) {
      session.step(step);
      io::save_checkpoint(session.strategy(), folder / "run", note(step, "ddp"));
      EXPECT_EQ(io::load_checkpoint(session.strategy(), folder / "run").step, step);
    }
    EXPECT_THAT(folder.listing(),
                ::testing::ElementsAre("run", "run/checkpoint.json", "run/step-000000004",
                                       "run/step-000000004/rank-00000-of-00002.safetensors",
                                       "run/step-000000007", "run/step-000000007/notes.txt"));
  });
}

}  // namespace
}  // namespace zero::testing
