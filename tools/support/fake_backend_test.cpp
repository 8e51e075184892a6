// One rank of a world that is not there: what it counts beside what real ranks count, and what its
// operations leave behind.
#include "fake_backend.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>

namespace zero::dist {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;

at::Tensor numbers(std::int64_t n) { return at::arange(1, n + 1, at::kFloat); }

// Every operation once, with sizes that no world size divides, and with nothing.
void call_everything(Communicator& c) {
  const std::int64_t n = c.size();
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, 7 * n + 3}) {
    for (int root = 0; root < n; ++root) {
      c.broadcast(numbers(size), root, Purpose::kSetup).wait();
      c.reduce(numbers(size), root, Purpose::kGradient).wait();
    }
    c.all_reduce(numbers(size), Purpose::kGradient).wait();
    c.reduce_scatter(at::zeros({size}), numbers(size * n), Purpose::kGradient).wait();
    c.all_gather(at::zeros({size * n}), numbers(size), Purpose::kParameter).wait();
    c.all_to_all(at::zeros({size * n}), numbers(size * n), Purpose::kParameter).wait();
  }
  c.barrier();
  if (n == 1) return;
  // Around in a ring.
  const int next = (c.rank() + 1) % c.size();
  const int previous = (c.rank() + c.size() - 1) % c.size();
  at::Tensor incoming = at::zeros({5});
  Work received = c.recv(incoming, previous, Purpose::kParameter);
  c.send(numbers(5), next, Purpose::kParameter).wait();
  received.wait();
}

TEST(FakeBackend, CountsWhatARealRankCounts) {
  for (const int ranks : {1, 2, 3, 5}) {
    on_ranks(ranks, [](Communicator& real) {
      Communicator fake = connect_fake(real.rank(), real.size());
      const Traffic before = real.traffic();
      call_everything(real);
      const Traffic sent = real.traffic().since(before);
      call_everything(fake);
      for (std::size_t o = 0; o < kOperations; ++o) {
        for (std::size_t p = 0; p < kPurposes; ++p) {
          const auto &ours = fake.traffic().entries[o][p], &theirs = sent.entries[o][p];
          SCOPED_TRACE(fmt::format("{} for {}", name(static_cast<Operation>(o)),
                                   name(static_cast<Purpose>(p))));
          EXPECT_EQ(ours.bytes, theirs.bytes);
          EXPECT_EQ(ours.calls, theirs.calls);
        }
      }
    });
  }
}

TEST(FakeBackend, KnowsOnlyRanksThatItsWorldHasAndSendsToOthersOnly) {
  EXPECT_NO_THROW(connect_fake(511, 512));
  EXPECT_THROW(connect_fake(512, 512), Error);
  EXPECT_THROW(connect_fake(-1, 512), Error);
  EXPECT_THROW(connect_fake(0, 0), Error);
  on_ranks(1, [](Communicator&) {
    Communicator fake = connect_fake(1, 3);
    EXPECT_THROW(fake.send(numbers(2), 1, Purpose::kSetup).wait(), Error);
    EXPECT_THROW(fake.recv(numbers(2), 1, Purpose::kSetup).wait(), Error);
    EXPECT_THROW(fake.broadcast(numbers(2), 3, Purpose::kSetup).wait(), Error);
  });
}

TEST(FakeBackend, TheOthersAgreeAndHaveThisRanksText) {
  Communicator c = connect_fake(2, 4);
  EXPECT_THAT(c.exchange("so be it"),
              ::testing::ElementsAre("so be it", "so be it", "so be it", "so be it"));
  EXPECT_NO_THROW(verify_same(c, "anything", "whatever"));
  EXPECT_THAT(c.transport(), HasSubstr("nothing is sent"));
}

TEST(FakeBackend, TwinsAverageToOneselfAndSumToNTimesOneself) {
  on_ranks(1, [](Communicator&) {
    Communicator c = connect_fake(1, 4);
    at::Tensor t = numbers(8);
    c.all_reduce(t, Purpose::kGradient).wait();
    EXPECT_TRUE(at::equal(t, numbers(8)));
    c.all_reduce(t, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(t, 4 * numbers(8)));
    at::Tensor piece = at::zeros({2});
    c.reduce_scatter(piece, numbers(8), Purpose::kGradient).wait();
    EXPECT_TRUE(at::equal(piece, numbers(8).narrow(0, 2, 2)));
    // Into the place where it lies.
    t = numbers(8);
    c.reduce_scatter(t.narrow(0, 2, 2), t, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(t.narrow(0, 2, 2), 4 * numbers(8).narrow(0, 2, 2)));
    EXPECT_TRUE(at::equal(t.narrow(0, 0, 2), numbers(2)));
    // The root gets the result, the others keep what they have.
    t = numbers(8);
    c.reduce(t, /*root=*/1, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(t, 4 * numbers(8)));
    c.reduce(t, /*root=*/0, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(t, 4 * numbers(8)));
  });
}

TEST(FakeBackend, EveryPieceIsThisRanks) {
  on_ranks(1, [](Communicator&) {
    Communicator c = connect_fake(1, 3);
    const at::Tensor mine = (numbers(2) + 2).repeat({3});
    at::Tensor all = at::zeros({6});
    c.all_gather(all, numbers(2), Purpose::kParameter).wait();
    EXPECT_TRUE(at::equal(all, numbers(2).repeat({3})));
    all = numbers(6);
    c.all_gather(all, all.narrow(0, 2, 2), Purpose::kParameter).wait();
    EXPECT_TRUE(at::equal(all, mine));
    c.all_to_all(all, numbers(6), Purpose::kParameter).wait();
    EXPECT_TRUE(at::equal(all, mine));
  });
}

// Memory that nobody has written may hold anything, and NaN would end the program's step.
TEST(FakeBackend, WhatAnotherRankSendsIsTheSameSmallNumberEverywhere) {
  on_ranks(1, [](Communicator&) {
    Communicator c = connect_fake(1, 3);
    for (const auto& [type, expected] :
         {std::pair{at::kFloat, 1.0 / 64}, {at::kHalf, 1.0 / 64}, {at::kLong, 0.0}}) {
      const at::Tensor there = at::full({4}, expected, type);
      at::Tensor t = at::full({4}, 7, type);
      c.broadcast(t, /*root=*/0, Purpose::kSetup).wait();
      EXPECT_TRUE(at::equal(t, there));
      t = type == at::kLong ? numbers(4).to(type) : at::full({4}, NAN, type);
      c.recv(t, /*source=*/2, Purpose::kActivation).wait();
      EXPECT_TRUE(at::equal(t, there));
      // Who sends does not receive.
      t = numbers(4).to(type);
      c.broadcast(t, /*root=*/1, Purpose::kParameter).wait();
      c.send(t, /*destination=*/0, Purpose::kParameter).wait();
      EXPECT_TRUE(at::equal(t, numbers(4).to(type)));
    }
  });
}

// A read that comes too early must be noticed here.
TEST(FakeBackend, NothingIsThereBeforeItIsWaitedFor) {
  on_ranks(1, [](Communicator&) {
    Communicator c = connect_fake(1, 3);
    at::Tensor all = at::zeros({6});
    Work pending = c.all_gather(all, numbers(2), Purpose::kParameter);
    EXPECT_TRUE(pending.active());
    EXPECT_TRUE(at::equal(all, at::zeros({6})));
    pending.wait();
    EXPECT_TRUE(at::equal(all, numbers(2).repeat({3})));
    at::Tensor t = numbers(3);
    pending = c.all_reduce(t, Purpose::kGradient, ReduceOp::kSum);
    EXPECT_TRUE(at::equal(t, numbers(3)));
    pending.wait();
    EXPECT_TRUE(at::equal(t, 3 * numbers(3)));
  });
}

TEST(FakeBackend, AGroupOfItIsAsFake) {
  Communicator c = connect_fake(300, 512);
  const auto group = c.split({7, 300, 511}, "some");
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 3);
  EXPECT_THAT(group->transport(), HasSubstr("nothing is sent"));
  EXPECT_THROW(c.split({7, 511}, "others"), Error);
}

TEST(FakeBackend, HostsHaveConsecutiveRanksAndGroupsKeepThem) {
  on_ranks(1, [](Communicator&) {
    Communicator world = connect_fake(11, 24, /*ranks_per_host=*/8);
    EXPECT_EQ(world.host_of(7), 0);
    EXPECT_EQ(world.host_of(8), 1);
    EXPECT_EQ(world.host_of(23), 2);
    const auto group = world.split({3, 11, 12, 19}, "some");
    EXPECT_EQ(group->host_of(0), 0);
    EXPECT_EQ(group->host_of(2), 1);
    at::Tensor all = at::zeros({8});
    group->all_gather(all, numbers(2), Purpose::kParameter).wait();
    EXPECT_EQ(world.traffic().bytes(Purpose::kParameter), 3 * 8);
    EXPECT_EQ(world.traffic().between_hosts(Purpose::kParameter), 2 * 8);
  });
  EXPECT_EQ(connect_fake(11, 24).host_of(23), 0);
  EXPECT_THROW(connect_fake(0, 24, 7), Error);
  EXPECT_THROW(connect_fake(0, 24, -1), Error);
}

}  // namespace
}  // namespace zero::dist
