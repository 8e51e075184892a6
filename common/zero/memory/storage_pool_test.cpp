#include <gtest/gtest.h>

#include <zero/memory/storage.hpp>
#include <zero/memory/storage_pool.hpp>

namespace zero::memory {
namespace {

class Pool : public ::testing::Test {
 protected:
  Pool() { install(); }

  static at::Tensor buffer(std::int64_t n, float value) {
    const Charge charge(Category::kParameters);
    return at::full({n}, value);
  }

  StoragePool pool_;
};

TEST_F(Pool, GivesABlockToTheNextTensorOfTheSameSizeAndItsCategory) {
  const at::Tensor first = buffer(1000, 1), second = buffer(1000, 2);
  const void* const block = first.const_data_ptr();
  release_storage(second);
  const Snapshot before = snapshot();
  pool_.release(first);
  EXPECT_FALSE(has_storage(first));
  EXPECT_EQ(pool_.bytes(), 4000u);
  EXPECT_EQ(snapshot().current, before.current) << "what is kept stays charged";
  pool_.allocate(second, Category::kGradients);
  EXPECT_TRUE(has_storage(second));
  EXPECT_EQ(second.const_data_ptr(), block);
  EXPECT_EQ(snapshot().allocations, before.allocations);
  EXPECT_EQ(snapshot()[Category::kParameters], before[Category::kParameters] - 4000);
  EXPECT_EQ(snapshot()[Category::kGradients], before[Category::kGradients] + 4000);
  EXPECT_EQ(pool_.bytes(), 0u);
}

TEST_F(Pool, WhatIsKeptGivesWayToAnotherSize) {
  const at::Tensor small = buffer(1000, 1);
  const at::Tensor large = buffer(2000, 2);
  const std::int64_t live = snapshot().total;
  release_storage(large);
  pool_.release(small);
  pool_.allocate(large, Category::kParameters);
  EXPECT_TRUE(has_storage(large));
  EXPECT_EQ(pool_.bytes(), 0u);
  pool_.allocate(small, Category::kParameters);
  EXPECT_TRUE(has_storage(small));
  EXPECT_EQ(snapshot().total, live);
  // And no more of it than is needed.
  const at::Tensor other = buffer(1000, 1);
  pool_.release(small);
  pool_.release(other);
  pool_.allocate(buffer(0, 0), Category::kParameters);
  EXPECT_EQ(pool_.bytes(), 8000u);
  const at::Tensor tiny = buffer(10, 0);
  release_storage(tiny);
  pool_.allocate(tiny, Category::kParameters);
  EXPECT_EQ(pool_.bytes(), 4000u);
}

TEST_F(Pool, FreesWhenItIsClearedOrAtOnceIfAskedTo) {
  for (const bool keeps : {true, false}) {
    StoragePool pool(keeps);
    const at::Tensor tensor = buffer(1000, 1);
    const std::int64_t live = snapshot().total;
    pool.allocate(tensor, Category::kParameters);  // it has its bytes
    EXPECT_EQ(tensor[0].item<float>(), 1.0F);
    pool.release(tensor);
    pool.release(tensor);
    EXPECT_FALSE(has_storage(tensor));
    EXPECT_EQ(pool.bytes(), keeps ? 4000U : 0U);
    pool.clear();
    EXPECT_EQ(pool.bytes(), 0U);
    EXPECT_EQ(snapshot().total, live - 4000);
    pool.allocate(tensor, Category::kParameters);
    EXPECT_TRUE(has_storage(tensor));
  }
}

// What autograd or a module holds is the storage object, which must be the same all the time.
TEST_F(Pool, WindowsOfATensorComeAndGoWithIt) {
  const at::Tensor tensor = buffer(1000, 1);
  at::Tensor window = tensor.narrow(0, 10, 5);
  pool_.release(tensor);
  pool_.allocate(tensor, Category::kParameters);
  tensor.fill_(7);
  EXPECT_EQ(window.sum().item<float>(), 35.0F);
}

}  // namespace
}  // namespace zero::memory
