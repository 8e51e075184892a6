// The process group that stands for NCCL's: what it has in common with it.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <thread>

#include <tests/support/accelerator/emulated_test.hpp>

#include "over_device.hpp"

namespace zero::dist {
namespace {

using ::testing::Each;
using testing::ProcessGroupOptions;
using zero::testing::make_process_group;
using zero::testing::on_ranks;
using zero::testing::TestFolder;

// A group of the ranks of `c`, for tensors of the CPU with streams.
c10::intrusive_ptr<c10d::Backend> group_of(const Communicator& c, const TestFolder& folder,
                                           const ProcessGroupOptions& options = {}) {
  zero::testing::enable_host_tasks();
  auto store = c10::make_intrusive<FolderStore>(folder.path());
  store->setTimeout(std::chrono::seconds(20));
  return make_process_group(store, c.rank(), c.size(), std::chrono::seconds(20), options);
}

// Waits until `work` looks complete.
void poll(c10d::Work& work) {
  while (!work.isCompleted()) std::this_thread::yield();
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

}  // namespace
}  // namespace zero::dist
