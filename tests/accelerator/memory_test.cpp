// The device's allocator: what it counts, what it hands out again and when, and what zero::memory
// sees of it.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <tests/support/accelerator/device_memory.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/accelerator/host_views.hpp>
#include <zero/memory/accounting.hpp>

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

TEST_F(MemoryTest, CountsLiveAndPeakBytes) {
  DeviceMemory::get().emptyCache();
  DeviceMemory::get().resetPeakStats(0);
  const auto requested = stat(&Stats::requested_bytes).current;
  const auto allocated = stat(&Stats::allocated_bytes).current;
  const auto reserved = stat(&Stats::reserved_bytes).current;
  {
    const at::Tensor a = bytes(1), b = bytes(513);
    EXPECT_EQ(stat(&Stats::requested_bytes).current, requested + 514);
    EXPECT_EQ(stat(&Stats::allocated_bytes).current, allocated + 512 + 1024);
  }
  const at::Tensor c = bytes(600);  // the block of b
  EXPECT_EQ(stat(&Stats::requested_bytes).current, requested + 600);
  EXPECT_EQ(stat(&Stats::requested_bytes).peak, requested + 600);
  EXPECT_EQ(stat(&Stats::allocated_bytes).peak, allocated + 512 + 1024);
  EXPECT_EQ(stat(&Stats::reserved_bytes).current, reserved + 512 + 1024);
  DeviceMemory::get().emptyCache();
  EXPECT_EQ(stat(&Stats::reserved_bytes).current, reserved + 1024);
}

TEST_F(MemoryTest, HandsABlockOutAgainAtOnceOnItsStreamOnly) {
  const void* first = bytes(700).const_data_ptr();
  {
    const c10::StreamGuard guard(new_stream());
    EXPECT_NE(bytes(700).const_data_ptr(), first);
  }
  EXPECT_EQ(bytes(700).const_data_ptr(), first);
}

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

TEST_F(MemoryTest, NewBytesAreNotNumbers) {
  for (int i = 0; i < 2; ++i) {  // a new block, then that block again
    const at::Tensor t = at::empty({3}, kDevice);
    EXPECT_TRUE(std::isnan(t[2].item<float>()));
    t.fill_(1);
  }
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

TEST_F(MemoryTest, IsSeenByTheAccountsOfTheLibrary) {
  count_blocks();
  const memory::Snapshot before = memory::snapshot();
  {
    const memory::Charge charge(memory::Category::kGradients);
    const at::Tensor t = bytes(1001);
    EXPECT_EQ(memory::snapshot()[memory::Category::kGradients],
              before[memory::Category::kGradients] + 1001);
    memory::recharge(t, memory::Category::kOptimizer);
    EXPECT_EQ(memory::snapshot()[memory::Category::kOptimizer],
              before[memory::Category::kOptimizer] + 1001);
  }
  EXPECT_EQ(memory::snapshot().current, before.current);
}

}  // namespace
}  // namespace zero::testing::emulated
