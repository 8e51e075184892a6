// What the checker finds: each mistake, planted in a small program, and the program without it.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <thread>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/accelerator/host_views.hpp>

namespace zero::testing {

// Its name is in the program's symbol table.
[[gnu::noinline]] void a_function_that_reads(const at::Tensor& t) { t.sum(); }

namespace emulated {
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

TEST_F(CheckerTest, AWriteBehindNoWaitIsFound) {
  order(current(), side);
  {
    const c10::StreamGuard guard(side);
    const at::Tensor sum = t + 1;
  }
  t.mul_(3);
  expect_found(Fault::kUnordered,
               {"a write by aten::mul.out on stream 0", "the read by aten::add.out"});
  order(side, current());
  t.mul_(3);
  expect_clean();
}

TEST_F(CheckerTest, TwoReadsNeedNoOrder) {
  order(current(), side);
  const at::Tensor here = t + 1;
  const c10::StreamGuard guard(side);
  const at::Tensor there = t + 1;
}

// An event is a snapshot: what comes after it on its stream is not waited for.
TEST_F(CheckerTest, AnEventCoversWhatWasBeforeIt) {
  c10::Event event(kDevice.type());
  event.record(current());
  t.fill_(3);
  event.block(side);
  const c10::StreamGuard guard(side);
  const at::Tensor sum = t + 1;
  expect_found(Fault::kUnordered, {"the write by aten::fill_"});
}

// By way of a third stream, and by way of the host.
TEST_F(CheckerTest, OrderIsTransitive) {
  const c10::Stream third = new_stream();
  t.fill_(3);
  order(current(), third);
  order(third, side);
  {
    const c10::StreamGuard guard(side);
    t.mul_(2);
  }
  side.synchronize();
  const c10::StreamGuard guard(new_stream());
  t.mul_(2);
}

TEST_F(CheckerTest, PartsOfABlockAreApart) {
  order(current(), side);
  t.narrow(0, 0, 4).fill_(1);
  const c10::StreamGuard guard(side);
  t.narrow(0, 4, 4).fill_(2);
  expect_clean();
  t.narrow(0, 3, 2).fill_(2);
  expect_found(Fault::kUnordered,
               {"a write by aten::fill_", "the write by aten::fill_.Scalar on stream 0"});
}

TEST_F(CheckerTest, MemoryOfAnEarlierTensorIsNotReadyOnAnotherStream) {
  at::Tensor output = at::empty({8}, kDevice);
  const c10::StreamGuard guard(side);
  output.fill_(1);
  expect_found(Fault::kUnordered, {"the write by the allocation on stream 0"});
  side.synchronize();
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

// A result that was allocated on the side stream goes back there.
TEST_F(CheckerTest, AFreeOfASideStreamsMemoryWhileThisStreamReadsIsFound) {
  at::Tensor made;
  {
    const c10::StreamGuard guard(side);
    made = at::ones({8}, kDevice);
  }
  order(side, current());
  const at::Tensor sum = made + 1;
  made.reset();
  expect_found(Fault::kFreedInUse, {"the read by aten::add.out on stream 0"});
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

TEST_F(CheckerTest, AHostWriteWhileAStreamReadsIsFound) {
  const at::Tensor sum = t + 1;
  host_view(t, /*writes=*/true, "a loop").fill_(7);
  const auto findings = Checker::get().take_findings();
  ASSERT_EQ(findings.size(), 2U) << text_of(findings);  // the write of t, and the read
  EXPECT_THAT(findings[1].text, ::testing::HasSubstr("not ordered behind the read by aten::add"));
  current().synchronize();
  host_view(t, /*writes=*/true, "a loop").fill_(7);
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

// A later copy on the same stream reads what the first one brings.
TEST_F(CheckerTest, ACopyBackOnTheSameStreamNeedsNoHostWait) {
  const at::Tensor host = at::empty({8}, at::TensorOptions().pinned_memory(true));
  EXPECT_TRUE(host.is_pinned());
  host.copy_(t, /*non_blocking=*/true);
  const at::Tensor back = host.narrow(0, 2, 6).to(kDevice, /*non_blocking=*/true);
  expect_clean();
  EXPECT_EQ(back.sum().item<float>(), 6);
  host.copy_(t, /*non_blocking=*/true);
  const c10::StreamGuard guard(side);
  const at::Tensor too_early = host.to(kDevice, /*non_blocking=*/true);
  expect_found(Fault::kUnordered, {"the host's memory", "the non-blocking copy_ on stream 0"});
  side.synchronize();
  c10::Stream(c10::Stream::DEFAULT, kDevice).synchronize();
}

TEST_F(CheckerTest, AnEventIsNotCompleteAtOnceAndThenTheHostKnows) {
  std::set<int> polls;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Checker::get().seed(seed);
    t.fill_(4);
    c10::Event event(kDevice.type());
    event.record(current());
    int asked = 0;
    while (!event.query()) ++asked;
    polls.insert(asked);
    host_view(t, /*writes=*/false, "a loop");
    expect_clean();
  }
  EXPECT_EQ(polls, (std::set<int>{1, 2, 3}));
  c10::Event event(kDevice.type());
  event.record(current());
  current().synchronize();
  EXPECT_TRUE(event.query());
}

TEST_F(CheckerTest, ThrowsAtOnceIfAsked) {
  Checker::get().throw_at_once(true);
  const c10::StreamGuard guard(side);
  EXPECT_THROW(t + 1, c10::Error);
  EXPECT_FALSE(Checker::get().take_findings().empty());
}

TEST_F(CheckerTest, NamesTheFunctions) {
  const c10::StreamGuard guard(side);
  a_function_that_reads(t);
  expect_found(Fault::kUnordered, {"on stream", " in zero::testing::a_function_that_reads is not"});
}

// Each thread has its own current stream; the host is one.
TEST_F(CheckerTest, ThreadsHaveTheirOwnStreams) {
  std::thread other([&] {
    EXPECT_EQ(current().id(), 0);
    const c10::StreamGuard guard(side);
    order(c10::Stream(c10::Stream::DEFAULT, kDevice), side);
    t.mul_(2);
  });
  other.join();
  EXPECT_EQ(current().id(), 0);
  t.add_(1);
  expect_found(Fault::kUnordered, {"add.out on stream 0", "the write by aten::mul.out"});
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([] {
      const c10::StreamGuard guard(new_stream());
      at::Tensor sum = at::zeros({100}, kDevice);
      for (int s = 0; s < 200; ++s) sum += at::ones({100}, kDevice);
      EXPECT_EQ(sum.sum().item<float>(), 20000);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace emulated
}  // namespace zero::testing
