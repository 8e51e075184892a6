// The process group that stands for NCCL's: what it has in common with it.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include <tests/support/accelerator/emulated_test.hpp>

#include "over_device.hpp"

namespace zero::dist {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::Gate;
using testing::ProcessGroupOptions;
using zero::testing::make_process_group;
using zero::testing::on_ranks;
using zero::testing::TestFolder;

// A group of the ranks of `c`, for tensors of the CPU with streams.
c10::intrusive_ptr<c10d::Backend> group_of(
    const Communicator& c, const TestFolder& folder, const ProcessGroupOptions& options = {},
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  zero::testing::enable_host_tasks();
  auto store = c10::make_intrusive<FolderStore>(folder.path());
  store->setTimeout(std::chrono::seconds(20));
  return make_process_group(store, c.rank(), c.size(), timeout, options);
}

// Waits until `work` looks complete.
void poll(c10d::Work& work) {
  while (!work.isCompleted()) std::this_thread::yield();
}

TEST(EmulatedGroup, HasTheResultsOfCollectives) {
  const TestFolder folder;
  on_ranks(3, [&](Communicator& c) {
    const auto group = group_of(c, folder);
    const int me = c.rank();
    std::vector<at::Tensor> t{at::full({4}, me + 1.0)};
    group->allreduce(t)->wait();
    EXPECT_TRUE(at::equal(t[0], at::full({4}, 6.0)));
    t[0].fill_(me + 1.0);
    group->reduce(t, {.rootRank = 2})->wait();
    EXPECT_TRUE(at::equal(t[0], at::full({4}, me == 2 ? 6.0 : me + 1.0)));
    group->broadcast(t, {.rootRank = 2})->wait();
    EXPECT_TRUE(at::equal(t[0], at::full({4}, 6.0)));
    at::Tensor all = at::zeros({6}), mine = at::full({2}, 1.0 * me);
    group->_allgather_base(all, mine)->wait();
    EXPECT_TRUE(at::equal(all.view({3, 2}).select(1, 1), at::arange(3).to(at::kFloat)));
    at::Tensor sum = at::zeros({2});
    group->_reduce_scatter_base(sum, all)->wait();
    EXPECT_TRUE(at::equal(sum, at::full({2}, 3.0 * me)));
    at::Tensor to = at::arange(3) + 10 * me, from = at::zeros_like(to);
    std::vector<std::int64_t> equal_pieces;
    group->alltoall_base(from, to, equal_pieces, equal_pieces)->wait();
    EXPECT_TRUE(at::equal(from, at::arange(3) * 10 + me));
    group->shutdown();
  });
}

TEST(EmulatedGroup, AWaitBlocksTheStreamAndNotTheHost) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    Gate gate;
    const auto group = group_of(c, folder, gate.options());
    std::vector<at::Tensor> t{at::ones({4})};
    const auto work = group->allreduce(t);
    work->wait();
    const c10::impl::VirtualGuardImpl device(at::kCPU);
    c10::Event after(at::kCPU), elsewhere(at::kCPU);
    after.record(device.getStream(at::kCPU));
    elsewhere.record(device.getStreamFromGlobalPool(at::kCPU));
    EXPECT_FALSE(work->isCompleted());
    EXPECT_FALSE(after.query());
    EXPECT_TRUE(elsewhere.query());
    EXPECT_EQ(t[0].const_data_ptr<float>()[0], 1);
    gate.open();
    EXPECT_TRUE(at::equal(t[0], at::full({4}, 2.0)));  // runs when the stream gets there
    EXPECT_TRUE(after.query());
    group->shutdown();
  });
}

// There it runs at once, on a stream of its own.
TEST(EmulatedGroup, OnTheEmulatedDeviceTheCheckerSaysWhetherTheWaitIsThere) {
  const TestFolder folder;
  zero::testing::emulated::enable();
  on_ranks(2, [&](Communicator& c) {
    const auto group = group_of(c, folder);
    std::vector<at::Tensor> t{at::ones({4}, zero::testing::emulated::kDevice)};
    for (const bool waits : {false, true}) {
      const auto work = group->allreduce(t);
      if (waits) work->wait();
      t[0].mul_(2);
      if (waits) {
        zero::testing::emulated::expect_clean();
      } else {
        zero::testing::emulated::expect_found(
            zero::testing::emulated::Fault::kUnordered,
            {"a write by aten::mul.out on stream 0", "the write by ALLREDUCE on stream"});
      }
      work->wait();
    }
    EXPECT_TRUE(at::equal(t[0].cpu(), at::full({4}, 16.0)));
    group->shutdown();
  });
}

TEST(EmulatedGroup, ALargeSendWaitsForItsReceiveAndASmallOneDoesNot) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    const auto group = group_of(c, folder, {.eager_bytes = 400});
    std::vector<at::Tensor> small{at::full({100}, 1.0)}, large{at::full({101}, 2.0)};
    if (c.rank() == 0) {
      poll(*group->send(small, 1, 0));
      poll(*group->send(small, 1, 0));
      const auto sent = group->send(large, 1, 0);
      c.barrier();  // rank 1 has received one
      EXPECT_FALSE(sent->isCompleted());
      c.barrier();
      poll(*sent);
    } else {
      std::vector<at::Tensor> connecting{at::zeros({100})};
      group->recv(connecting, 0, 0)->wait();
      c.barrier();
      c.barrier();
      std::vector<at::Tensor> first{at::zeros({100})}, second{at::zeros({101})};
      group->recv(first, 0, 0)->wait();
      group->recv(second, 0, 0)->wait();
      EXPECT_TRUE(at::equal(first[0], small[0]));
      EXPECT_TRUE(at::equal(second[0], large[0]));
    }
    group->shutdown();
    c.barrier();  // what was sent early is still the sender's
  });
}

// Both directions of a pair are one stream: two large sends that cross never end.
TEST(EmulatedGroup, RunsTheMessagesOfAPairOneAfterTheOther) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    const auto group = group_of(c, folder, {}, std::chrono::seconds(1));
    const int other = 1 - c.rank();
    std::vector<at::Tensor> out{at::ones({4})}, in{at::zeros({4})};
    const auto sent = group->send(out, other, 0);
    const auto received = group->recv(in, other, 0);
    poll(*received);
    EXPECT_NE(group->getError(), c10d::ErrorType::SUCCESS);
    c.barrier();
  });
}

TEST(EmulatedGroup, AWorkKeepsItsOutputsWhileItLivesAndItsInputsUntilItsWait) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    const auto group = group_of(c, folder, {.keeps_buffers = false});
    at::Tensor all = at::zeros({4}), mine = at::ones({2});
    const auto output = all.storage().getWeakStorageImpl(),
               input = mine.storage().getWeakStorageImpl();
    auto work = group->_allgather_base(all, mine);
    all.reset(), mine.reset();
    poll(*work);
    EXPECT_FALSE(input.expired());
    work->wait();
    EXPECT_TRUE(input.expired());
    EXPECT_FALSE(output.expired());
    work.reset();
    EXPECT_TRUE(output.expired());
    group->shutdown();
  });
}

// What ends an operation is in getError() alone.
TEST(EmulatedGroup, ALostPeerLooksLikeACompleteOperation) {
  const TestFolder folder;
  const auto exits = zero::testing::ranks_ended({.world_size = 2}, [&](Communicator& c) {
    const auto group = group_of(c, folder);
    std::vector<at::Tensor> t{at::ones({4})};
    group->allreduce(t)->wait();
    EXPECT_TRUE(at::equal(t[0], at::full({4}, 2.0)));
    if (c.rank() == 1) std::_Exit(0);
    const auto work = group->allreduce(t);
    EXPECT_TRUE(work->wait());
    poll(*work);
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    EXPECT_EQ(group->getError(), c10d::ErrorType::COMM_ERROR);
    const auto* const bytes = static_cast<const unsigned char*>(t[0].const_data_ptr());
    EXPECT_THAT(std::vector<int>(bytes, bytes + t[0].nbytes()), Each(0xFF));
  });
  EXPECT_TRUE(exits[0].ok()) << describe_failures(exits);
}

TEST(EmulatedGroup, AHookMakesARankLateOrLosesIt) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    std::vector<c10d::OpType> seen;
    const auto before = [&](c10d::OpType type, std::uint64_t number) {
      seen.push_back(type);
      if (number == 1 && c.rank() == 1) throw std::runtime_error("lost");
    };
    const auto group = group_of(c, folder, {.before = before}, std::chrono::minutes(10));
    std::vector<at::Tensor> t{at::ones({4})};
    poll(*group->allreduce(t));
    EXPECT_EQ(group->getError(), c10d::ErrorType::SUCCESS);
    auto work = group->allreduce(t);
    if (c.rank() == 0) {
      c.barrier();  // rank 1 has left
      group->abort();
    }
    poll(*work);
    if (c.rank() == 1) c.barrier();
    EXPECT_THAT(seen, ElementsAre(c10d::OpType::ALLREDUCE, c10d::OpType::ALLREDUCE));
    EXPECT_EQ(group->getError(),
              c.rank() == 1 ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS);
    c.barrier();  // rank 0 was freed by its abort, not by the end of rank 1
  });
}

}  // namespace
}  // namespace zero::dist
