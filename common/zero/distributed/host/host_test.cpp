// What only ranks of one host have: reading each other's memory, or sharing some, in any order of
// waiting.

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/host/read_permission.hpp>
#include <zero/distributed/host/shared_arena.hpp>

namespace zero::dist {
namespace {

// Yama with ptrace_scope 1, for processes that are forked while one lives: a process reads the
// memory of its descendants, and of those that allow it to one of its ancestors. Most machines that
// run these tests do not have it, and root would be asked nothing.
struct Yama {
  struct Entry {
    std::atomic<int> pid;
    std::atomic<long> allowed;  // what it gave with PR_SET_PTRACER last
    std::atomic<int> calls;     // how often
  };
  std::array<Entry, 64> entries;

  Entry& of(int pid) {
    for (Entry& entry : entries) {
      int free = 0;
      if (entry.pid == pid || entry.pid.compare_exchange_strong(free, pid)) return entry;
    }
    std::abort();
  }
  bool may_read(int pid) {
    const std::vector<int> above = lineage();
    const auto is_above = [&](long other) {
      return std::find(above.begin(), above.end(), other) != above.end();
    };
    const long allowed = of(pid).allowed;
    return pid == ::getpid() || is_above(allowed) ||
           allowed == static_cast<long>(PR_SET_PTRACER_ANY);
  }
};
Yama* yama = nullptr;

class YamaIsOn {
 public:
  YamaIsOn() {
    void* const memory = ::mmap(nullptr, sizeof(Yama), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, 0);
    yama = new (memory) Yama{};
  }
  ~YamaIsOn() { ::munmap(std::exchange(yama, nullptr), sizeof(Yama)); }
};

}  // namespace
}  // namespace zero::dist

// In place of libc's, also for the library.
extern "C" int prctl(int option, ...) noexcept {
  std::va_list words;
  va_start(words, option);
  std::array<unsigned long, 4> w{};
  for (unsigned long& word : w) word = va_arg(words, unsigned long);
  va_end(words);
  if (option == PR_SET_PTRACER && zero::dist::yama != nullptr) {
    auto& entry = zero::dist::yama->of(::getpid());
    entry.allowed = static_cast<long>(w[0]);
    ++entry.calls;
    return 0;
  }
  return static_cast<int>(::syscall(SYS_prctl, option, w[0], w[1], w[2], w[3]));
}

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* to, unsigned long n_to,
                                    const iovec* from, unsigned long n_from,
                                    unsigned long flags) noexcept {
  if (zero::dist::yama != nullptr && !zero::dist::yama->may_read(pid)) {
    errno = EPERM;
    return -1;
  }
  return ::syscall(SYS_process_vm_readv, pid, to, n_to, from, n_from, flags);
}

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;
using testing::ranks_ended;
using ::testing::StartsWith;

// The same ranks again, connected in the way that `transport` says. Where ranks differ in that they
// need one label.
std::unique_ptr<Communicator> again(Communicator& c, const char* transport,
                                    const char* label = nullptr) {
  ::setenv("ZERO_TRANSPORT", transport, /*overwrite=*/1);
  std::vector<int> all(static_cast<std::size_t>(c.size()));
  std::iota(all.begin(), all.end(), 0);
  return c.split(all, label == nullptr ? transport : label);
}

void expect_sum(Communicator& c) {
  at::Tensor t = at::full({5}, c.rank() + 1);
  c.all_reduce(t, Purpose::kGradient, ReduceOp::kSum).wait();
  EXPECT_EQ(t[4].item<int>(), c.size() * (c.size() + 1) / 2);
}

TEST(TransportChoice, IsUsedOrNotAsAskedAndSaysSo) {
  on_ranks(2, [](Communicator& c) {
    EXPECT_EQ(again(c, "host")->transport(), "one copy within the host");
    EXPECT_THAT(again(c, "shared")->transport(), StartsWith("shared memory"));
    EXPECT_THAT(again(c, "tcp")->transport(), StartsWith("TCP"));
    EXPECT_THROW(again(c, "pigeon"), Error);
  });
}

TEST(TransportChoice, OneRankThatDoesNotWantItDecidesForAll) {
  on_ranks(3, [](Communicator& c) {
    const auto group = again(c, c.rank() == 1 ? "tcp" : "auto", "mixed");
    EXPECT_THAT(group->transport(), HasSubstr("rank 1 does not want it"));
    expect_sum(*group);
  });
}

// What a container's rules do where they allow no process to look into another.
void forbid_reading_other_processes() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(TransportChoice, MemoryIsSharedWhereRanksMayNotReadEachOthers) {
  on_ranks(2, [](Communicator& c) {
    if (c.rank() == 1) forbid_reading_other_processes();
    EXPECT_THROW(again(c, "host"), Error);
    const auto group = again(c, "auto");
    EXPECT_THAT(group->transport(), StartsWith("shared memory"));
    EXPECT_THAT(group->transport(),
                HasSubstr("rank 1: the system forbids reading the memory of rank 0"));
    expect_sum(*group);
  });
}

class UnderYama : public ::testing::TestWithParam<int> {
 protected:
  // The ranks are connected in another way first, which is none of this test's.
  void SetUp() override { ::setenv("ZERO_TRANSPORT", "tcp", /*overwrite=*/1); }
  void TearDown() override { ::unsetenv("ZERO_TRANSPORT"); }
  const YamaIsOn on_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, UnderYama, ::testing::Values(2, 3));

TEST_P(UnderYama, RanksAllowReadingToTheirLaunchersDescendantsWhileTheyAreConnected) {
  on_ranks(GetParam(), [](Communicator& c) {
    const Yama::Entry& mine = yama->of(::getpid());
    auto group = again(c, "auto");
    EXPECT_EQ(group->transport(), "one copy within the host");
    EXPECT_EQ(mine.allowed, ::getppid());
    expect_sum(*group);
    // Another that lives longer goes on with what the first has asked for.
    const auto second = again(c, "host");
    group.reset();
    c.barrier();
    EXPECT_EQ(mine.allowed, ::getppid());
    expect_sum(*second);
  });
}

TEST_P(UnderYama, NobodyMayReadARankAfterItsCommunicator) {
  on_ranks(GetParam(), [](Communicator& c) {
    again(c, "auto").reset();
    EXPECT_EQ(yama->of(::getpid()).allowed, 0);
    EXPECT_EQ(yama->of(::getpid()).calls, 2);
  });
}

TEST_P(UnderYama, SharedMemoryAndTcpNeedNoPermission) {
  on_ranks(GetParam(), [](Communicator& c) {
    for (const char* way : {"shared", "tcp"}) expect_sum(*again(c, way));
    // One rank that wants to do without decides for all.
    expect_sum(*again(c, c.rank() == 1 ? "shared" : "auto", "mixed"));
    EXPECT_EQ(yama->of(::getpid()).calls, 0);
  });
}

TEST_P(UnderYama, WhatCanBeReadWithoutIsNotAllowed) {
  on_ranks(GetParam(), [](Communicator& c) {
    yama->of(::getpid()).allowed = static_cast<long>(PR_SET_PTRACER_ANY);
    c.barrier();
    const auto group = again(c, "host");
    expect_sum(*group);
    EXPECT_EQ(yama->of(::getpid()).calls, 0);
  });
}

TEST(NearestCommonAncestor, IsTheFirstThatAllHave) {
  EXPECT_EQ(nearest_common_ancestor({{9, 3, 1}, {8, 7, 3, 1}}), 3);
  EXPECT_EQ(nearest_common_ancestor({{9, 3, 1}, {9, 3, 1}}), 9);
  EXPECT_EQ(nearest_common_ancestor({{9, 3, 1}, {5, 1}, {3, 1}}), 1);
  EXPECT_EQ(nearest_common_ancestor({{9, 3}, {8, 4}}), 0);
  const std::vector<int> mine = lineage();
  ASSERT_GE(mine.size(), 2U);
  EXPECT_EQ(mine[0], ::getpid());
  EXPECT_EQ(mine[1], ::getppid());
}

std::int64_t bytes_in_memory(const SharedArena& arena) {
  struct stat state {};
  EXPECT_EQ(::fstat(arena.file(), &state), 0);
  return static_cast<std::int64_t>(state.st_blocks) * 512;
}

TEST(SharedArena, IsReadByOthersWhereItSaysAndUsesGapsAgain) {
  SharedArena arena(bytes_of_this_machine());
  const SharedArena seen(::getpid(), arena.file(), bytes_of_this_machine());
  const std::string first(5000, 'a'), second(300, 'b'), third(4000, 'c');
  const auto put = [&](const std::string& text) {
    return arena.put(text.data(), static_cast<std::int64_t>(text.size()));
  };
  const auto holds = [&](std::int64_t offset, const std::string& text) {
    return std::memcmp(seen.at(offset), text.data(), text.size()) == 0;
  };
  const std::int64_t one = put(first), two = put(second);
  EXPECT_TRUE(holds(one, first) && holds(two, second));
  arena.free(one);
  const std::int64_t three = put(third);
  EXPECT_LT(three, two);
  EXPECT_TRUE(holds(two, second) && holds(three, third));
  EXPECT_GT(put(first), two) << "the gap before it is too small now";
}

TEST(SharedArena, GivesMemoryBack) {
  SharedArena arena(bytes_of_this_machine());
  const std::string large(std::size_t{200} << 20, 'x');
  const auto size = static_cast<std::int64_t>(large.size());
  const std::int64_t offset = arena.put(large.data(), size);
  EXPECT_GE(bytes_in_memory(arena), size);
  arena.free(offset);
  EXPECT_LE(bytes_in_memory(arena), std::int64_t{64} << 20);
  EXPECT_THROW(arena.put(nullptr, std::int64_t{1} << 50), Error);
}

class HostTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, HostTransport, ::testing::Values("host", "shared"),
                         [](const auto& info) { return info.param; });

TEST_P(HostTransport, ProgressTakesTheStepsThatNeedNoWaiting) {
  on_ranks(2, [](Communicator& c) {
    const auto host = again(c, GetParam());
    at::Tensor all = at::zeros({2});
    at::Tensor sum = at::full({2}, c.rank() + 1.0);
    at::Tensor part = at::zeros({1});
    Work gather = host->all_gather(all, at::full({1}, c.rank() + 1.0), Purpose::kParameter);
    Work scatter = host->reduce_scatter(part, sum, Purpose::kGradient, ReduceOp::kSum);
    c.exchange("both have posted");  // through the store, which advances nothing
    EXPECT_EQ(all[1 - c.rank()].item<float>(), 0.0F);
    host->progress();
    EXPECT_EQ(all[1 - c.rank()].item<float>(), 2.0F - static_cast<float>(c.rank()));
    EXPECT_EQ(part.item<float>(), 3.0F);
    gather.wait();
    scatter.wait();
  });
}

// Otherwise a rank with many of them would wait as many time limits for a peer that is stopped.
TEST_P(HostTransport, WhatIsUnderWayWhenAPeerIsLostFailsAtOnce) {
  const testing::TestFolder folder;
  const auto ended = folder / "ended";
  using Clock = std::chrono::steady_clock;
  on_ranks({.timeout = std::chrono::seconds(2)}, [&](Communicator& c) {
    const auto host = again(c, GetParam());
    const auto started = Clock::now();
    if (c.rank() == 1) {  // is there, and calls nothing
      while (!std::filesystem::exists(ended) && Clock::now() - started < std::chrono::seconds(20)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return;
    }
    std::vector<at::Tensor> tensors(6);
    std::vector<Work> in_flight;
    for (at::Tensor& tensor : tensors) {
      tensor = at::zeros({8});
      in_flight.push_back(host->all_reduce(tensor, Purpose::kGradient));
    }
    for (Work& pending : in_flight) EXPECT_THROW(pending.wait(), Error);
    EXPECT_LT(Clock::now() - started, std::chrono::seconds(8));  // not six limits
    std::ofstream{ended};
  });
}

// Rank 0 waits for the first collective while rank 1 waits for the second: each must go on with the
// other's.
TEST_P(HostTransport, MayBeWaitedForInAnyOrder) {
  on_ranks(3, [](Communicator& c) {
    const auto host = again(c, GetParam());
    std::vector<at::Tensor> tensors;
    std::deque<Work> pending;
    for (int i = 0; i < 6; ++i) {
      tensors.push_back(at::full({1000}, c.rank() + i, at::kFloat));
      if (i % 2 == 0) {
        pending.push_back(host->all_reduce(tensors.back(), Purpose::kGradient, ReduceOp::kSum));
      } else {
        pending.push_back(host->broadcast(tensors.back(), i % 3, Purpose::kParameter));
      }
    }
    for (int i = 0; i < 6; ++i) {
      Work& next = c.rank() == 1 ? pending.back() : pending.front();
      next.wait();
      c.rank() == 1 ? pending.pop_back() : pending.pop_front();
    }
    for (int i = 0; i < 6; ++i) {
      const float expected = i % 2 == 0 ? 3.0F + 3.0F * i : static_cast<float>(i % 3 + i);
      EXPECT_TRUE(at::equal(tensors[static_cast<std::size_t>(i)], at::full({1000}, expected))) << i;
    }
  });
}

TEST_P(HostTransport, MoreCollectivesMayBeUnderWayThanTheBoardHasRoomFor) {
  on_ranks(2, [](Communicator& c) {
    const auto host = again(c, GetParam());
    std::vector<at::Tensor> tensors;
    std::vector<Work> pending;
    for (int i = 0; i < 2500; ++i) {
      tensors.push_back(at::full({3}, c.rank() * 10000 + i, at::kInt));
      pending.push_back(host->broadcast(tensors.back(), i % 2, Purpose::kParameter));
    }
    for (Work& p : pending) p.wait();
    for (int i = 0; i < 2500; ++i) {
      ASSERT_EQ(tensors[static_cast<std::size_t>(i)][2].item<int>(), (i % 2) * 10000 + i);
    }
  });
}

TEST_P(HostTransport, NamesTheRankThatIsInAnotherCollective) {
  const auto ends = ranks_ended({}, [](Communicator& c) {
    const auto host = again(c, GetParam());
    at::Tensor t = at::ones({c.rank() == 0 ? 5 : 6});
    host->all_reduce(t, Purpose::kGradient).wait();
  });
  for (const RankExit& end : ends) {
    EXPECT_NE(end.exit_code, 0);
    EXPECT_THAT(end.output,
                ::testing::AnyOf(HasSubstr("rank 1 is in all_reduce of 6 Float for gradient"),
                                 HasSubstr("is gone")));
  }
}

TEST_P(HostTransport, APeerThatLeavesWithAnErrorIsNoticed) {
  const auto ends = ranks_ended({.world_size = 3}, [](Communicator& c) {
    const auto host = again(c, GetParam());
    if (c.rank() == 2) throw Error("I have had enough");
    at::Tensor t = at::ones({5});
    host->all_reduce(t, Purpose::kGradient).wait();
  });
  EXPECT_THAT(ends[2].output, HasSubstr("I have had enough"));
  for (const int r : {0, 1}) {
    EXPECT_NE(ends[static_cast<std::size_t>(r)].exit_code, 0);
    EXPECT_THAT(ends[static_cast<std::size_t>(r)].output, HasSubstr("is gone"));
  }
}

}  // namespace
}  // namespace zero::dist
