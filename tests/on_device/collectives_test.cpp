// Collectives of tensors on a device, beside those of the CPU.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>

#include "on_device.hpp"

namespace zero::testing {
namespace {

using dist::Communicator;
using dist::Purpose;
using dist::ReduceOp;
using dist::ReductionOrder;
using dist::Traffic;
using dist::Work;

at::Tensor random(const Communicator& c, std::int64_t n, at::ScalarType dtype) {
  at::manual_seed(static_cast<std::uint64_t>(c.rank()) + 1);
  return at::randn({n}).to(dtype);
}

// Of this rank: connecting has made it the current one.
at::Device own(at::DeviceType type) { return at::empty({0}, at::TensorOptions(type)).device(); }

// Of what keeps a stream busy, where a stream can be: the width of a matrix, and elements.
std::int64_t width(at::DeviceType type) { return type == at::kCUDA ? 2048 : 8; }
std::int64_t many(at::DeviceType type) { return type == at::kCUDA ? 1 << 20 : 1 << 10; }

// One call with CPU tensors, which go over Gloo, and the same with tensors of the device.
struct Both {
  Communicator& c;
  at::Device here;

  using Body = std::function<at::Tensor(at::Device device)>;
  void same(const std::string& what, const Body& body) {
    const Traffic start = c.traffic();
    const at::Tensor expected = body(at::kCPU);
    const Traffic middle = c.traffic();
    const at::Tensor got = body(here);
    EXPECT_EQ(got.device(), here) << what;
    EXPECT_TRUE(at::equal(got.cpu(), expected)) << what;
    EXPECT_EQ(c.traffic().since(middle).bytes(), middle.since(start).bytes()) << what;
  }
  // The same for a call that changes a copy of `tensor` in place.
  void same_in_place(const std::string& what, const at::Tensor& tensor,
                     const std::function<void(at::Tensor)>& call) {
    same(what, [&](at::Device device) {
      const at::Tensor copy = tensor.to(device, tensor.scalar_type(), false, /*copy=*/true);
      call(copy);
      return copy;
    });
  }
};

TEST_P(CollectivesOn, RankOrderedSumsHaveTheBitsOfTheCpu) {
  on_each_rank(ReductionOrder::kRankOrdered, [](Communicator& c) {
    Both both{c, own(device())};
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t n : {0, 1, 2, 1000, 100003}) {
        const std::string what = fmt::format(" of {} {}", n, c10::toString(dtype));
        const at::Tensor mine = random(c, n, dtype), pieces = random(c, n * c.size(), dtype);
        both.same_in_place("all_reduce" + what, mine,
                           [&](at::Tensor t) { c.all_reduce(t, Purpose::kGradient).wait(); });
        both.same_in_place("reduce" + what, mine,
                           [&](at::Tensor t) { c.reduce(t, 1, Purpose::kGradient).wait(); });
        both.same("reduce_scatter" + what, [&](at::Device device) {
          at::Tensor t = at::empty({n}, mine.options().device(device));
          c.reduce_scatter(t, pieces.to(device), Purpose::kGradient).wait();
          return t;
        });
      }
    }
  });
}

// Whole numbers: every order of adding gives the same sum.
TEST_P(CollectivesOn, NativeSumsAreRight) {
  on_each_rank(ReductionOrder::kNative, [](Communicator& c) {
    Both both{c, own(device())};
    for (const std::int64_t n : {0, 1, 2, 1000, 100003}) {
      const at::Tensor mine = (at::arange(n * c.size()).remainder(101) + c.rank()).to(at::kFloat);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        both.same_in_place(fmt::format("all_reduce of {}", n), mine,
                           [&](at::Tensor t) { c.all_reduce(t, Purpose::kGradient, op).wait(); });
        both.same_in_place(fmt::format("reduce of {}", n), mine,
                           [&](at::Tensor t) { c.reduce(t, 2, Purpose::kGradient, op).wait(); });
      }
      // In place: with the CPU's tensor it would be another one.
      at::Tensor input = mine.to(own(device())).clone();
      at::Tensor output = input.narrow(0, c.rank() * n, n);
      const Traffic before = c.traffic();
      c.reduce_scatter(output, input, Purpose::kGradient, ReduceOp::kSum).wait();
      EXPECT_EQ(c.traffic().since(before).bytes(), 4 * n * (c.size() - 1));
      const at::Tensor sum = mine * c.size() + 3 - c.size() * c.rank();  // 3 = 0 + 1 + 2
      EXPECT_TRUE(at::equal(output.cpu(), sum.narrow(0, c.rank() * n, n))) << n;
    }
  });
}

TEST_P(CollectivesOn, MoveTensorsAsTheCpuDoes) {
  on_each_rank(ReductionOrder::kRankOrdered, [](Communicator& c) {
    Both both{c, own(device())};
    for (const std::int64_t n : {0, 1, 2, 1000, 100003}) {
      const at::Tensor mine = random(c, n, at::kFloat), pieces = random(c, n * c.size(), at::kHalf);
      both.same_in_place("broadcast", mine,
                         [&](at::Tensor t) { c.broadcast(t, 1, Purpose::kParameter).wait(); });
      both.same("all_gather", [&](at::Device device) {
        at::Tensor all = at::zeros({c.size() * n}, mine.options().device(device));
        c.all_gather(all, mine.to(device), Purpose::kParameter).wait();
        return all;
      });
      both.same("all_gather in place", [&](at::Device device) {
        at::Tensor all = at::zeros({c.size() * n}, mine.options().device(device));
        at::Tensor part = all.narrow(0, c.rank() * n, n);
        part.copy_(mine);
        c.all_gather(all, part, Purpose::kParameter).wait();
        return all;
      });
      both.same("all_to_all", [&](at::Device device) {
        at::Tensor all = at::zeros({c.size() * n}, pieces.options().device(device));
        c.all_to_all(all, pieces.to(device), Purpose::kParameter).wait();
        return all;
      });
      both.same_in_place("send and recv", mine, [&](at::Tensor t) {
        if (c.rank() == 0) c.send(t, 1, Purpose::kControl).wait();
        if (c.rank() == 1) c.recv(t, 0, Purpose::kControl).wait();
      });
    }
  });
}

// The host runs ahead of all three streams; events alone put things in order.
TEST_P(StreamsOn, AWaitOrdersThemAndReusedBuffers) {
  on_each_rank(ReductionOrder::kRankOrdered, [](Communicator& c) {
    const std::int64_t n = many(device());
    const auto there = at::TensorOptions(own(device()));
    at::Tensor shard = at::zeros({n}, there), all = at::zeros({n * c.size()}, there);
    at::Tensor gradient = at::zeros({n * c.size()}, there), average = at::zeros({n}, there);
    at::Tensor large = at::randn({width(device()), width(device())}, there);
    const auto extremes = [](const at::Tensor& pieces) {
      return at::stack({pieces.amin(1), pieces.amax(1)});
    };
    std::vector<at::Tensor> gathered, averages;
    for (int round = 0; round < 20; ++round) {
      for (int k = 0; k < 5; ++k) large = large.mm(large).clamp_(-1, 1);  // keeps the stream busy
      shard.fill_(100.0 * round + c.rank());
      gradient.fill_(round + 3.0 * c.rank());
      Work gathering = c.all_gather(all, shard, Purpose::kParameter);
      Work reducing = c.reduce_scatter(average, gradient, Purpose::kGradient);
      large = large.mm(large).clamp_(-1, 1);
      gathering.wait();
      gathered.push_back(extremes(all.view({c.size(), n})));
      reducing.wait();
      averages.push_back(extremes(average.view({1, n})));
      // Given up as soon as it was waited for, and written over at once by the next round.
    }
    c.synchronize();
    for (int round = 0; round < 20; ++round) {
      const auto r = static_cast<std::size_t>(round);
      const at::Tensor of_rank = 100.0F * round + at::arange(c.size(), at::kFloat);
      EXPECT_TRUE(at::equal(gathered[r].cpu(), at::stack({of_rank, of_rank}))) << round;
      EXPECT_TRUE(at::equal(averages[r].cpu(), at::full({2, 1}, round + 1.5F * (c.size() - 1))))
          << round;
    }
  });
}

// What a rank gives to a native reduction of float16 is a widened copy, which nobody but the
// collective knows of. Other tensors are made at once, where its bytes would be if it were freed.
TEST_P(StreamsOn, AWidenedCopyLivesUntilItWasWaitedFor) {
  on_each_rank(ReductionOrder::kNative, [](Communicator& c) {
    const std::int64_t n = many(device());
    const auto there = at::TensorOptions(own(device()));
    at::Tensor large = at::randn({width(device()), width(device())}, there);
    std::vector<at::Tensor> sums;
    for (int round = 0; round < 10; ++round) {
      at::Tensor mine = at::full({n}, 1.0 + round + c.rank(), there.dtype(at::kHalf));
      for (int k = 0; k < 5; ++k) large = large.mm(large).clamp_(-1, 1);  // keeps the stream busy
      Work reducing = c.reduce(mine, /*root=*/0, Purpose::kGradient, ReduceOp::kSum);
      std::vector<at::Tensor> others;
      for (int k = 0; k < 4; ++k) others.push_back(at::full({n}, -1000.0, there));
      reducing.wait();
      sums.push_back(at::stack({mine.amin(), mine.amax()}));
    }
    c.synchronize();
    for (int round = 0; c.rank() == 0 && round < 10; ++round) {
      const double of_ranks = c.size() * (c.size() - 1) / 2.0;
      const at::Tensor expected = at::full({2}, c.size() * (1.0 + round) + of_ranks, at::kHalf);
      EXPECT_TRUE(at::equal(sums[static_cast<std::size_t>(round)].cpu(), expected)) << round;
    }
  });
}

TEST_P(CollectivesOn, GroupsOfSomeRanksAndOfOne) {
  on_each_rank(ReductionOrder::kRankOrdered, [](Communicator& c) {
    const std::vector<int> members = c.rank() == 2 ? std::vector<int>{2} : std::vector<int>{1, 0};
    const auto group = c.split(members, "some");
    at::Tensor t = at::full({5}, c.rank() + 1.0, at::TensorOptions(own(device())));
    group->all_reduce(t, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(t.cpu(), at::full({5}, 3.0)));  // 1 + 2, and rank 2's own 3
    c.barrier();
  });
}

TEST_P(CollectivesOn, RefuseATensorOfNoOrOfAnotherDevice) {
  on_each_rank(ReductionOrder::kNative, [](Communicator& c) {
    at::Tensor on_device = at::zeros({3}, at::TensorOptions(own(device())));
    EXPECT_THROW(c.all_gather(at::zeros({9}), on_device, Purpose::kParameter), Error);
    EXPECT_THROW(c.all_reduce(at::zeros({3}, at::kMeta), Purpose::kGradient), Error);
    EXPECT_THROW(c.all_reduce(on_device.to(at::kInt), Purpose::kGradient).wait(), Error);
  });
}

}  // namespace
}  // namespace zero::testing
