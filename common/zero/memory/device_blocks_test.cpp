// Blocks of another device's allocator in the counts. There need be no such device: the blocks are
// addresses.

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <array>

#include <zero/memory/accounting.hpp>
#include <zero/memory/device_blocks.hpp>
#include <zero/memory/storage.hpp>

namespace zero::memory {
namespace {

TEST(DeviceBlocks, AreChargedToTheScopeAndCountedUntilFreed) {
  std::array<char, 2> block{};
  reset_peaks();
  const Snapshot before = snapshot();
  {
    const Charge charge(Category::kOptimizer);
    device_block_allocated(&block[0], 1000);
  }
  device_block_allocated(&block[1], 10);
  const Snapshot with = snapshot();
  EXPECT_EQ(with[Category::kOptimizer] - before[Category::kOptimizer], 1000);
  EXPECT_EQ(with[Category::kOther] - before[Category::kOther], 10);
  EXPECT_EQ(with.total - before.total, 1010);
  EXPECT_EQ(with.allocations - before.allocations, 2);
  device_block_freed(&block[0]);
  device_block_freed(&block[1]);
  const Snapshot after = snapshot();
  EXPECT_EQ(after.current, before.current);
  EXPECT_EQ(after.total_peak - before.total, 1010);
}

TEST(DeviceBlocks, OneThatWasNotAnnouncedIsNobodys) {
  char block = 0;
  const Snapshot before = snapshot();
  device_block_freed(&block);
  EXPECT_EQ(snapshot().current, before.current);
}

TEST(DeviceBlocks, AreRechargedThroughTheirTensors) {
  std::array<float, 4> block{};
  const Snapshot before = snapshot();
  device_block_allocated(block.data(), sizeof(block));
  const at::Tensor tensor = at::from_blob(block.data(), {4});
  EXPECT_EQ(category_of(tensor), Category::kOther);
  recharge(tensor.view({2, 2}), Category::kGradients);
  EXPECT_EQ(category_of(tensor), Category::kGradients);
  EXPECT_EQ(snapshot()[Category::kGradients] - before[Category::kGradients], 16);
  EXPECT_EQ(snapshot().total - before.total, 16);
  device_block_freed(block.data());
  EXPECT_EQ(category_of(tensor), Category::kOther);
  EXPECT_EQ(snapshot().current, before.current);
}

// The meta device stands for every one that is not the CPU.
TEST(StorageOnAnotherDevice, GoesAndComesBackThere) {
  const at::Tensor tensor = at::empty({3, 5}, at::TensorOptions(at::kMeta));
  release_storage(tensor);
  EXPECT_FALSE(has_storage(tensor));
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({3, 5}));
  allocate_storage(tensor);
  EXPECT_TRUE(has_storage(tensor));
  EXPECT_TRUE(tensor.storage().device().is_meta());
}

}  // namespace
}  // namespace zero::memory
