// What the counting allocator counts, also of blocks of another device, and storage that goes away
// and comes back.

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero::memory {
namespace {

TEST(Accounting, ChargesTheInnermostScopeToTheByte) {
  const Snapshot before = snapshot();
  const Charge parameters(Category::kParameters);
  const at::Tensor a = at::empty({100});
  at::Tensor b;
  {
    const Charge gradients(Category::kGradients);
    b = at::empty({10}, at::kDouble);
  }
  const at::Tensor c = at::empty({1}, at::kByte);
  const Snapshot now = snapshot();
  EXPECT_EQ(now[Category::kParameters] - before[Category::kParameters], 401);
  EXPECT_EQ(now[Category::kGradients] - before[Category::kGradients], 80);
  EXPECT_EQ(now.total - before.total, 481);
  EXPECT_EQ(std::accumulate(now.current.begin(), now.current.end(), std::int64_t{0}), now.total);
}

TEST(Accounting, RechargingMovesABlockOnceWhateverViewItIsSeenThrough) {
  at::Tensor t = at::empty({64});
  const Snapshot before = snapshot();
  recharge(t.narrow(0, 10, 3), Category::kGradients);
  recharge(t, Category::kGradients);
  const Snapshot now = snapshot();
  EXPECT_EQ(now[Category::kGradients] - before[Category::kGradients], 256);
  EXPECT_EQ(now.total, before.total);
  t = at::Tensor();
  EXPECT_EQ(snapshot()[Category::kGradients], before[Category::kGradients]);
}

TEST(Accounting, PeaksAreOfTheTotalAndStartAnew) {
  reset_peaks();
  const std::int64_t before = snapshot().total;
  { const at::Tensor t = at::empty({1000}); }
  { const at::Tensor t = at::empty({500}); }
  EXPECT_EQ(snapshot().total_peak - before, 4000);
  EXPECT_EQ(snapshot().total, before);
  reset_peaks();
  EXPECT_EQ(snapshot().total_peak, before);
}

TEST(Accounting, ModelStatesHaveAPeakOfTheirOwn) {
  reset_peaks();
  const std::int64_t before = snapshot().states_peak;
  EXPECT_EQ(before, snapshot().model_states());
  const auto charged = [](Category category, std::int64_t floats) {
    const Charge charge(category);
    return at::empty({floats});
  };
  {
    const at::Tensor parameters = charged(Category::kParameters, 100);
    charged(Category::kGradients, 50);  // gone before the next are there
    const at::Tensor moments = charged(Category::kOptimizer, 20);
    charged(Category::kActivations, 1000);
    EXPECT_EQ(snapshot().states_peak - before, 600);
    const at::Tensor gradient = charged(Category::kActivations, 40);
    EXPECT_EQ(snapshot().states_peak - before, 600);
    recharge(gradient, Category::kGradients);
    EXPECT_EQ(snapshot().states_peak - before, 640);
  }
  EXPECT_EQ(snapshot().states_peak - before, 640);
  reset_peaks();
  EXPECT_EQ(snapshot().states_peak, before);
}

// Autograd saves a weight by reference: bytes that come back are the bytes that backward reads.
TEST(Storage, WhatAutogradSavedIsValidAfterTheBytesCameBack) {
  const at::Tensor w = at::ones({4, 4}).requires_grad_();
  const at::Tensor x = at::ones({2, 4}).requires_grad_();
  const at::Tensor loss = x.matmul(w).sum();
  release_storage(w);
  allocate_storage(w);
  raw(w).fill_(3);
  loss.backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2, 4}, 12.0F)));
}

std::string access_error(const at::Tensor& tensor) {
  try {
    tensor.sum();
  } catch (const c10::Error& error) {
    return error.msg();
  }
  return "none";
}

TEST(Storage, ComesBackUnderTheSameTensorAndAnAccessBeforeIsAnErrorWithTheTextGiven) {
  const std::int64_t total = snapshot().total;
  const at::Tensor t = without_storage({3, 5}, at::kFloat);
  EXPECT_FALSE(has_storage(t));
  EXPECT_EQ(snapshot().total, total);
  allocate_storage(t);
  EXPECT_EQ(snapshot().total - total, 60);
  const at::Tensor before = t.narrow(0, 1, 1);
  release_storage(t, "not now");
  EXPECT_EQ(snapshot().total, total);
  EXPECT_EQ(t.sizes(), (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(access_error(t), "not now");
  EXPECT_EQ(access_error(before), "not now");
  EXPECT_EQ(access_error(t.view({-1}).narrow(0, 2, 3)), "not now");
  EXPECT_THROW(t.mutable_data_ptr(), c10::Error);
  allocate_storage(t);
  t.fill_(2);
  EXPECT_EQ(before.sum().item<float>(), 10.0F);
  EXPECT_NE(access_error(without_storage({2}, at::kFloat)), "none");
  EXPECT_EQ(access_error(without_storage({0}, at::kFloat)), "none");
}

TEST(Storage, IsBorrowedWithoutAnAllocation) {
  const at::Tensor lender = at::arange(15, at::kFloat);
  const at::Tensor t = at::zeros({2, 3});
  separate_storage(t, "not now");
  const std::int64_t before = snapshot().total;
  EXPECT_EQ(access_error(t), "not now");
  borrow_storage(t, lender.narrow(0, 5, 6));
  EXPECT_TRUE(has_storage(t));
  EXPECT_EQ(t.sum().item<float>(), 5 + 6 + 7 + 8 + 9 + 10);
  release_storage(t, "no more");
  EXPECT_EQ(access_error(t), "no more");
  EXPECT_EQ(lender.sum().item<float>(), 105.0F);
  EXPECT_EQ(snapshot().total, before);
}

// Blocks of another device's allocator. There need be no such device: the blocks are addresses.
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
  recharge(tensor.view({2, 2}), Category::kGradients);
  EXPECT_EQ(snapshot()[Category::kGradients] - before[Category::kGradients], 16);
  EXPECT_EQ(snapshot().total - before.total, 16);
  device_block_freed(block.data());
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
