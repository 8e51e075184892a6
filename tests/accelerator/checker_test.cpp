// What the checker finds: each mistake, planted in a small program, and the program without it.

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/accelerator/host_views.hpp>

namespace zero::testing::emulated {
namespace {

class CheckerTest : public EmulatedTest {
 protected:
  // What a test leaves is freed in order.
  ~CheckerTest() override { Checker::get().synchronize(); }

  at::Tensor t = at::ones({8}, kDevice);
  c10::Stream side = new_stream();
};

TEST_F(CheckerTest, AReadBehindNoWaitIsFound) {
  for (const bool waits : {false, true}) {
    t.fill_(2);
    if (waits) order(current(), side);
    {
      const c10::StreamGuard guard(side);
      const at::Tensor sum = t + 1;
    }
    if (waits) {
      expect_clean();
    } else {
      expect_found(Fault::kUnordered, {"a read by aten::add.out on stream",
                                       "the write by aten::fill_.Scalar on stream 0"});
    }
    order(side, current());
  }
}

TEST_F(CheckerTest, AFreeWhileAnotherStreamReadsIsFound) {
  enum Way { kNone, kWaits, kRecords, kHostWaits };
  for (const Way way : {kNone, kWaits, kRecords, kHostWaits}) {
    at::Tensor lent = at::ones({8}, kDevice);
    order(current(), side);
    {
      const c10::StreamGuard guard(side);
      const at::Tensor sum = lent + 1;
    }
    if (way == kWaits) order(side, current());
    if (way == kRecords) lent.record_stream(side);
    if (way == kHostWaits) side.synchronize();
    lent.reset();
    if (way == kNone) {
      expect_found(Fault::kFreedInUse,
                   {"stream 0", "the read by aten::add.out", "record_stream()"});
    } else {
      expect_clean();
    }
  }
}

TEST_F(CheckerTest, AHostReadBehindNoWaitIsFound) {
  {
    order(current(), side);
    const c10::StreamGuard guard(side);
    t.fill_(5);
  }
  t[0].item<float>();  // waits for the default stream
  expect_found(Fault::kUnordered, {"a read by item on stream 0", "the write by aten::fill_"});
  t.cpu();
  expect_found(Fault::kUnordered, {"a read by copy_ on stream 0", "the write by aten::fill_"});
  host_view(t, /*writes=*/false, "a loop");
  expect_found(Fault::kHostAccess, {"a read by a loop on the host", "the write by aten::fill_"});
  side.synchronize();
  EXPECT_EQ(t[0].item<float>(), 5);
  EXPECT_EQ(host_view(t, /*writes=*/false, "a loop")[0].item<float>(), 5);
}

TEST_F(CheckerTest, AResultOfANonBlockingCopyArrivesWhenTheHostHasWaited) {
  const at::Tensor host = at::zeros({8});
  host.copy_(t, /*non_blocking=*/true);
  EXPECT_TRUE(std::isnan(host.const_data_ptr<float>()[0]));
  host.sum();
  expect_found(Fault::kReadEarly, {"aten::sum", "the non-blocking copy_ on stream 0"});
  current().synchronize();
  EXPECT_TRUE(at::equal(host, at::ones({8})));
}

}  // namespace
}  // namespace zero::testing::emulated
