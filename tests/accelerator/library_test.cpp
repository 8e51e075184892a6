// Memory that the library releases, keeps and hands on while a side stream may still use it. The
// values are right, because kernels run in program order; the checker sees that nothing orders
// them.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/memory/storage.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/nn/checkpoint.hpp>

namespace zero::testing::emulated {
namespace {

class LibraryTest : public EmulatedTest {
 protected:
  ~LibraryTest() override { Checker::get().synchronize(); }

  // The sum of `t`, on the side stream, which waits for this one.
  at::Tensor sum_on_side(const at::Tensor& t) {
    order(current(), side);
    const c10::StreamGuard guard(side);
    return t.sum();
  }
  // Of a tensor that a side stream made.
  float value(const at::Tensor& t) {
    side.synchronize();
    return t.item<float>();
  }

  c10::Stream side = new_stream();
};

TEST_F(LibraryTest, AStorageReleasedWhileASideStreamReads) {
  for (const bool waits : {false, true}) {
    const at::Tensor parameter = at::full({100}, 2.0F, kDevice);
    const at::Tensor sum = sum_on_side(parameter);
    if (waits) order(side, current());
    memory::release_storage(parameter);
    if (waits) {
      expect_clean();
    } else {
      expect_found(Fault::kFreedInUse, {"the read by aten::sum", "zero::memory::release_storage"});
    }
    EXPECT_EQ(value(sum), 200);
  }
}

// The pool hands bytes on without the allocator.
TEST_F(LibraryTest, APoolThatHandsOnWhatASideStreamReads) {
  for (const bool waits : {false, true}) {
    memory::StoragePool pool;
    const at::Tensor first = at::full({100}, 2.0F, kDevice);
    const at::Tensor second = memory::without_storage({100}, at::kFloat, kDevice);
    const at::Tensor sum = sum_on_side(first);
    if (waits) order(side, current());
    pool.release(first);
    pool.allocate(second, memory::Category::kParameters);
    second.fill_(3);
    if (waits) {
      expect_clean();
    } else {
      expect_found(Fault::kUnordered, {"a write by aten::fill_", "the read by aten::sum"});
    }
    EXPECT_EQ(value(sum), 200);
  }
}

TEST_F(LibraryTest, BytesLentToASideStreamThatDoesNotWait) {
  for (const bool waits : {false, true}) {
    const at::Tensor lender = at::full({100}, 2.0F, kDevice);
    const at::Tensor window = memory::without_storage({50, 2}, at::kFloat, kDevice);
    memory::borrow_storage(window, lender);
    lender.mul_(2);
    at::Tensor sum;
    if (waits) order(current(), side);
    {
      const c10::StreamGuard guard(side);
      sum = window.sum();
    }
    if (waits) {
      expect_clean();
    } else {
      expect_found(Fault::kUnordered, {"a read by aten::sum", "the write by aten::mul"});
    }
    EXPECT_EQ(value(sum), 400);
  }
}

TEST_F(LibraryTest, ACheckpointDrawsTheDevicesRandomNumbersAgain) {
  std::vector<at::Tensor> drawn;
  const at::Tensor loss = nn::checkpoint(
      [&drawn](const std::vector<at::Tensor>& inputs) {
        drawn.push_back(inputs[0].detach().clone().normal_());
        return (inputs[0] * drawn.back()).sum();
      },
      {at::ones({20}, at::TensorOptions(kDevice).requires_grad(true))});
  const at::Tensor between = at::ones({20}, kDevice).normal_();
  loss.backward();
  ASSERT_EQ(drawn.size(), 2U);
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(at::equal(drawn[0], between));
}

}  // namespace
}  // namespace zero::testing::emulated
