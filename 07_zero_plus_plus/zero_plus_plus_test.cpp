// ZeRO++ against chapter 00. With hpZ gradients are added up in the order of ranks, as everywhere,
// so that nothing may differ in a single bit. What is quantized has a bound.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tests/support/groups.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/two_bytes.hpp>
#include <zero/io/checkpoint.hpp>

namespace zero::testing {
namespace {

std::string in_groups(const std::string& mode, int size) {
  return fmt::format("{}:group_size={}", mode, size);
}

void expect_hpz_like_ddp(const Shape& shape, const RunOptions& options,
                         const std::string& more = "") {
  expect_like(shape, "ddp", {in_groups("hpz", shape.shards) + more}, options);
}

class HpzParity : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Groups, HpzParity,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2},
                                           Shape{2, 3}),
                         name_of_shape);

TEST_P(HpzParity, AdamW) { expect_hpz_like_ddp(GetParam(), {}); }

// Several buffers in a unit, and secondary shards of units that are still to run.
TEST_P(HpzParity, SmallBucketsAndMoreAhead) {
  expect_hpz_like_ddp(GetParam(), {.steps = 3},
                      ":bucket_mib=0.0002:in_flight_mib=0.0002:lookahead=3");
  expect_hpz_like_ddp(GetParam(), {.steps = 3}, ":lookahead=0:keep_buffers=false");
}

TEST_P(HpzParity, ClippedGradients) {
  expect_hpz_like_ddp(GetParam(), {.steps = 3, .clip_norm = 0.05});
}

TEST_P(HpzParity, AccumulatedLocallyAndAfterReducingEach) {
  expect_hpz_like_ddp(GetParam(), {.steps = 2, .micro_batches = 3});
  expect_hpz_like_ddp(
      GetParam(),
      {.steps = 2, .micro_batches = 3, .accumulation = train::Accumulation::kReduceEach});
}

// Everything that a run shows of its weights. New weights come from updates and from a checkpoint;
// an evaluation and a skipped step leave them as they are.
std::vector<std::vector<at::Tensor>> seen_in_a_run(dist::Communicator& communicator,
                                                   const std::string& mode,
                                                   const SessionOptions& options) {
  const TestFolder own;  // that of rank 0 counts
  const std::filesystem::path folder = communicator.exchange(own.path().string()).front();
  Session session(communicator, mode, options);
  train::Strategy& strategy = session.strategy();
  std::vector<std::vector<at::Tensor>> seen;
  const auto see = [&] {
    at::Tensor losses = at::zeros({3}, at::kDouble);
    for (int b = 0; b < 3; ++b) {
      losses[b] = session.trainer().evaluate({session.batch(20 + b)});
    }
    seen.push_back({losses});
    seen.push_back(session.weights());
  };
  see();
  session.step(0);
  see();
  io::save_checkpoint(strategy, folder, {});
  session.step(1);
  strategy.backward(forward_batch(strategy, session.batch(2)));
  see();  // inside a step
  strategy.finish_backward();
  strategy.zero_grad();  // the step is skipped
  session.step(3);
  see();
  io::load_checkpoint(strategy, folder);
  see();
  session.trainer().step({session.batch(4), session.batch(5), session.batch(6)});
  session.step(7);
  see();
  communicator.barrier();  // rank 0's folder lives until all have read
  return seen;
}

void expect_the_run_of_ddp(const Shape& shape, const SessionOptions& options) {
  on_ranks(shape.ranks(), [&](dist::Communicator& communicator) {
    const auto expected = seen_in_a_run(communicator, "ddp", options);
    const auto found = seen_in_a_run(communicator, in_groups("hpz", shape.shards), options);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t k = 0; k < found.size(); ++k) {
      EXPECT_TRUE(same_bits(found[k], expected[k])) << k;
    }
    EXPECT_FALSE(same_bits(expected[1], expected[3])) << "nothing was trained";
    EXPECT_FALSE(same_bits(expected[7], expected[9])) << "nothing was loaded";
  });
}

TEST_P(HpzParity, AfterALoadAnEvaluationAndASkippedStep) { expect_the_run_of_ddp(GetParam(), {}); }

// Also the test that a mutant must fail.
TEST(HpzAtTwoByTwo, HasTheBitsOfChapter00AfterALoadAnEvaluationAndASkippedStep) {
  expect_the_run_of_ddp({2, 2}, {});
}

TEST(HpzAtTwoByTwo, HasTheBitsOfChapter00In2Bytes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto reduce : {dist::ReduceType::kOwn, dist::ReduceType::kFloat32}) {
      SCOPED_TRACE(fmt::format("{} in {}", c10::toString(dtype), name(reduce)));
      expect_the_run_of_ddp({2, 2}, mixed(dtype, reduce));
    }
  }
}

// ---- quantized parameters

// What this rank computes with: weights as they are inside a forward.
std::vector<at::Tensor> weights_in_forward(Session& session) {
  std::vector<at::Tensor> weights;
  session.model().call_in_forward([&] { weights = whole_weights(session.strategy()); });
  session.trainer().evaluate({session.batch(30)});
  session.model().call_in_forward({});
  return weights;
}

// On fresh weights, after an update, and twice on the same: a second gather may be of what was
// kept.
void on_weights(const std::string& mode,
                const std::function<void(dist::Communicator&, Session&)>& body) {
  on_ranks(4, [&](dist::Communicator& communicator) {
    SessionOptions options = with_parts("lat");
    options.model.width = 40;  // a shard has blocks of several parameters
    Session session(communicator, mode, options);
    for (int s = 0; s < 2; ++s) {
      body(communicator, session);
      body(communicator, session);
      session.step(s);
    }
  });
}

void expect_same_bits_on_all_ranks(const std::string& mode) {
  on_weights(mode, [](dist::Communicator& communicator, Session& session) {
    for (const at::Tensor& weight : weights_in_forward(session)) {
      const at::Tensor mine = weight.flatten();
      const at::Tensor all = at::empty({4 * mine.numel()}, mine.options());
      communicator.all_gather(all, mine, dist::Purpose::kControl).wait();
      EXPECT_TRUE(at::equal(all, mine.repeat({4})));
    }
  });
}

void expect_rounded_by_half_a_step(const std::string& mode) {
  on_weights(mode, [](dist::Communicator&, Session& session) {
    const std::vector<at::Tensor> weights = session.weights();
    const std::vector<at::Tensor> found = weights_in_forward(session);
    ASSERT_EQ(found.size(), weights.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float step = weights[i].abs().max().item<float>() / 127;
      EXPECT_LE((found[i] - weights[i]).abs().max().item<float>(), 0.5001 * step) << i;
    }
    EXPECT_FALSE(same_bits(found, weights));
  });
}

TEST(QwzAtTwoByTwo, ComputesWithTheSameBitsOnAllRanks) {
  expect_same_bits_on_all_ranks(in_groups("qwz", 2));
}
TEST(QwzAtTwoByTwo, RoundsByHalfAStep) { expect_rounded_by_half_a_step(in_groups("qwz", 2)); }

// ---- quantized gradients

// Of each parameter: the average over ranks of the largest magnitude of a rank's gradient.
class LargestGradients {
 public:
  explicit LargestGradients(Session& session)
      : largest_(at::zeros({std::ssize(session.strategy().list().parameters)})) {
    session.strategy().passes().observe_gradients([this](std::size_t i, const at::Tensor& g) {
      largest_[static_cast<std::int64_t>(i)].fill_(g.detach().abs().max());
    });
  }
  at::Tensor average(dist::Communicator& communicator) const {
    communicator.all_reduce(largest_, dist::Purpose::kControl).wait();
    return largest_;
  }

 private:
  at::Tensor largest_;
};

// Two hops of half a step each; a block has no larger values than its parameter.
void expect_close_to_the_true_mean(const Shape& shape, const std::string& more, double largest_q) {
  on_ranks(shape.ranks(), [&](dist::Communicator& communicator) {
    const auto gradients = [&](Session& session) {
      session.strategy().backward(forward_batch(session.strategy(), session.batch(0)));
      session.strategy().finish_backward();
      return session.gradients();
    };
    Session plain(communicator, "ddp", with_parts("lat"));
    const std::vector<at::Tensor> means = gradients(plain);
    // The same weights: only what is sent of gradients is rounded.
    Session session(communicator, in_groups("qgz", shape.shards) + more, with_parts("lat"));
    const LargestGradients watch(session);
    const std::vector<at::Tensor> found = gradients(session);
    const at::Tensor largest = watch.average(communicator);
    ASSERT_EQ(found.size(), means.size());
    for (std::size_t i = 0; i < means.size(); ++i) {
      ASSERT_EQ(found[i].defined(), means[i].defined());
      if (!means[i].defined()) continue;
      const double bound =
          2 * 0.5001 / largest_q * largest[static_cast<std::int64_t>(i)].item<float>() + 1e-7;
      EXPECT_LE((found[i] - means[i]).abs().max().item<double>(), bound) << i;
      EXPECT_GT(means[i].abs().max().item<double>(), bound) << i << ": the bound says nothing";
    }
  });
}

TEST(QgzAtTwoByTwo, IsWithinTheBoundOfTwoHopsOfTheTrueMean) {
  expect_close_to_the_true_mean({2, 2}, "", 7);
}
}  // namespace
}  // namespace zero::testing
