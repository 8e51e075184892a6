// The device's allocator: when it hands a block out again, and that the host cannot read it; and
// the state of its random numbers.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <tests/support/accelerator/device_memory.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/accelerator/host_views.hpp>
#include <zero/nn/checkpoint.hpp>

namespace zero::testing::emulated {
namespace {

class MemoryTest : public EmulatedTest {
 protected:
  static at::Tensor bytes(std::int64_t n) {
    return at::empty({n}, at::TensorOptions(kDevice).dtype(at::kByte));
  }
  static c10::CachingAllocator::Stat stat(
      c10::CachingAllocator::StatArray c10::CachingDeviceAllocator::DeviceStats::*of) {
    return (DeviceMemory::get().getDeviceStats(0).*of)[0];
  }
};

using Stats = c10::CachingDeviceAllocator::DeviceStats;

TEST_F(MemoryTest, HoldsABlockBackWhileARecordedStreamUsesIt) {
  const c10::Stream side = new_stream();
  const void* address = nullptr;
  const auto active = stat(&Stats::active_bytes).current;
  {
    const at::Tensor t = bytes(5000);
    address = t.const_data_ptr();
    t.record_stream(side);
    order(current(), side);
    const c10::StreamGuard guard(side);
    t.fill_(1);
  }
  EXPECT_EQ(stat(&Stats::active_bytes).current, active + 5120);
  EXPECT_NE(bytes(5000).const_data_ptr(), address);
  side.synchronize();
  std::vector<at::Tensor> others;
  bool found = false;
  for (int i = 0; i < 4 && !found; ++i) {
    others.push_back(bytes(5000));
    found = others.back().const_data_ptr() == address;
  }
  EXPECT_TRUE(found);
}

TEST_F(MemoryTest, IsNotTheHosts) {
  const at::Tensor t = at::full({3}, 2.0F, kDevice), fresh = at::empty({3}, kDevice);
  const auto is_two = [](const at::Tensor& of) { return of.const_data_ptr<float>()[1] == 2.0F; };
  for (const at::Tensor& of : {t, fresh}) {
    EXPECT_EXIT(std::exit(is_two(of) ? 0 : 1), ::testing::KilledBySignal(SIGSEGV), "");
  }
  current().synchronize();
  const at::Tensor view = host_view(t, /*writes=*/false, "this test");
  EXPECT_TRUE(is_two(t));
}

// In a process of its own, because autograd starts threads.
TEST(CheckpointOnADevice, DrawsItsRandomNumbersAgain) {
  on_emulated_ranks({.world_size = 1}, [](dist::Communicator&) {
    std::vector<at::Tensor> drawn;
    const at::Tensor loss = nn::checkpoint(
        [&drawn](const std::vector<at::Tensor>& inputs) {
          drawn.push_back(inputs[0].detach().clone().normal_());
          return (inputs[0] * drawn.back()).sum();
        },
        {at::ones({20}, kDevice).requires_grad_()});
    const at::Tensor between = at::ones({20}, kDevice).normal_();
    loss.backward();
    ASSERT_EQ(drawn.size(), 2U);
    EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
    EXPECT_FALSE(at::equal(drawn[0], between));
  });
}

}  // namespace
}  // namespace zero::testing::emulated
