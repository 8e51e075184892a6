// What only ranks of one host have: reading each other's memory, in any order of waiting.

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <thread>
#include <utility>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/support/process.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/shared_arena.hpp>

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;
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

// What a container's rules do where they allow no memory without a file.
void forbid_memory_without_a_file() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(TransportChoice, IsTcpWhereMemoryCannotBeShared) {
  ::setenv("ZERO_TRANSPORT", "tcp", /*overwrite=*/1);  // so that the first connection shares none
  on_ranks(2, [](Communicator& c) {
    if (c.rank() == 1) forbid_memory_without_a_file();
    EXPECT_THROW(again(c, "host"), Error);
    const auto group = again(c, "auto");
    EXPECT_THAT(group->transport(), HasSubstr("rank 0: the memory of rank 1 cannot be read"));
    expect_sum(*group);
  });
  ::unsetenv("ZERO_TRANSPORT");
}

// Tensors that peers read in place, and those that are copied for them: older than the transport,
// small, or of an optimizer.
TEST(TransportChoice, TensorsMayLieAnywhere) {
  memory::install();
  ::setenv("ZERO_TRANSPORT", "tcp", /*overwrite=*/1);
  on_ranks(3, [](Communicator& c) {
    const auto is_shared = [](const at::Tensor& tensor) {
      return memory::share_large_blocks().contains(tensor.const_data_ptr());
    };
    constexpr std::int64_t kLarge = 3 << 20;  // elements
    std::vector<at::Tensor> tensors = {at::empty({kLarge})};
    const auto group = again(c, "host");
    tensors.push_back(at::empty({kLarge}));
    tensors.push_back(at::empty({kLarge}).narrow(0, 1, kLarge - 7));  // begins in no vector
    tensors.push_back(at::empty({1001}));
    {
      const memory::Charge charge(memory::Category::kOptimizer);
      tensors.push_back(at::empty({kLarge}));
    }
    // What is read, for the first time here, does not count as memory of the reader.
    tensors[1].fill_(1);
    const std::int64_t before = tools::resident_set_bytes();
    at::Tensor all = at::zeros({3, kLarge});
    group->all_gather(all, tensors[1], Purpose::kParameter).wait();
    const auto gathered = static_cast<std::int64_t>(all.nbytes());
    EXPECT_LT(tools::resident_set_bytes() - before, gathered + gathered / 3);
    const std::vector<bool> in_place = {false, true, true, false, false};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(is_shared(tensors[i]), in_place[i]) << i;
      const auto of = [&](int rank) {
        return at::arange(tensors[i].numel()).remainder(127).to(at::kFloat) + rank;
      };
      const at::Tensor sum = of(0) + of(1) + of(2);
      tensors[i].copy_(of(c.rank()));
      group->all_reduce(tensors[i], Purpose::kGradient, ReduceOp::kSum).wait();
      EXPECT_TRUE(at::equal(tensors[i], sum)) << i;
      tensors[i].copy_(of(c.rank()));
      group->broadcast(tensors[i], 1, Purpose::kParameter).wait();
      EXPECT_TRUE(at::equal(tensors[i], of(1))) << i;
    }
  });
  ::unsetenv("ZERO_TRANSPORT");
}

TEST(HostTransport, ProgressTakesTheStepsThatNeedNoWaiting) {
  on_ranks(2, [](Communicator& c) {
    const auto host = again(c, "host");
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
TEST(HostTransport, WhatIsUnderWayWhenAPeerIsLostFailsAtOnce) {
  const testing::TestFolder folder;
  const auto ended = folder / "ended";
  using Clock = std::chrono::steady_clock;
  on_ranks({.timeout = std::chrono::seconds(2)}, [&](Communicator& c) {
    const auto host = again(c, "host");
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
TEST(HostTransport, MayBeWaitedForInAnyOrder) {
  on_ranks(3, [](Communicator& c) {
    const auto host = again(c, "host");
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

TEST(HostTransport, MoreCollectivesMayBeUnderWayThanTheBoardHasRoomFor) {
  on_ranks(2, [](Communicator& c) {
    const auto host = again(c, "host");
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

}  // namespace
}  // namespace zero::dist
