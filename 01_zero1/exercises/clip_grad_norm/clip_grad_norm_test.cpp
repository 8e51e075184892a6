// The same tests for your answer, for the solution and for the wrong answers.

#include "clip_grad_norm.hpp"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cmath>
#include <harness.hpp>
#include <zero/train/registry.hpp>

#include "toy.hpp"
#include "trap_model.hpp"

namespace zero {
namespace {

using testing::on_ranks;

// A model, where its first values come from, and batches that differ by rank and step.
struct Example {
  std::shared_ptr<nn::Model> model;
  nn::SeededValues values{5};
  std::function<data::Batch(int rank, int step)> batch;
};

Example toy() {
  const testing::Toy toy;
  return {toy.model, toy.values, [toy](int rank, int step) { return toy.batch(rank, step); }};
}

// Tied, frozen, sometimes used, never used, a scalar.
Example traps() {
  const nn::DeferredStorage deferred;
  return {std::make_shared<testing::TrapModel>(), nn::SeededValues{5},
          [](int rank, int step) { return testing::trap_batch(17, rank, step); }};
}

// Whole numbers whose squares add up to that of 17807201; small ones, so that the average of three
// ranks' is exact.
std::vector<float> large_gradient() {
  std::vector<float> parts;
  for (std::int64_t left = std::int64_t{17807201} * 17807201; left > 0;) {
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(left)));
    parts.push_back(static_cast<float>(std::min<std::int64_t>(root, 1 << 21)));
    left -= static_cast<std::int64_t>(parts.back()) * static_cast<std::int64_t>(parts.back());
  }
  return parts;
}

// Its gradient tells in which order squares were added. Those of the first parameter add up to the
// square of a number that lies halfway between two floats. Those of each other add up to half of
// what a double of that size can tell apart: one after the other they vanish, together they do not.
class Halfway : public nn::Model {
 public:
  Halfway() {
    const auto size = static_cast<std::int64_t>(gradient_.size());
    large_ = add_parameter("large", {size}, nn::Initializer::constant(1));
    for (int i = 0; i < 8; ++i) {
      small_.push_back(add_parameter(fmt::format("small{}", i), {2}, nn::Initializer::constant(1)));
    }
  }
  at::Tensor loss(const data::Batch&) override {
    return run(
        [&] {
          at::Tensor sum = (large_ * at::from_blob(gradient_.data(), large_.sizes())).sum();
          for (const at::Tensor& small : small_) sum = sum + (small * 0.125).sum();
          return sum;
        },
        {});
  }
  at::Tensor predict(const data::Batch& batch) override { return loss(batch); }

 private:
  std::vector<float> gradient_ = large_gradient();
  at::Tensor large_;
  std::vector<at::Tensor> small_;
};

Example halfway() {
  const nn::DeferredStorage deferred;
  return {std::make_shared<Halfway>(), nn::SeededValues{5},
          [](int, int) { return data::Batch{.loss_terms = 1}; }};
}

optim::OptimizerFactory optimizer_named(const std::string& name) {
  return name == "sgd" ? optim::sgd({.learning_rate = 0.1, .momentum = 0.9}) : optim::adamw();
}

struct Record {
  std::vector<float> norms;
  std::vector<at::Tensor> weights;
};

using Clip = std::function<float(train::Strategy&)>;

Clip yours(double max_norm) {
  return [max_norm](train::Strategy& strategy) { return clip_grad_norm(strategy, max_norm); };
}

Clip library(double max_norm) {
  return [max_norm](train::Strategy& strategy) { return strategy.clip_grad_norm(max_norm); };
}

// Three steps; `clip` stands between the reduction of gradients and the optimizer.
Record train(dist::Communicator& communicator, Example example, const std::string& mode,
             const std::string& optimizer, const Clip& clip) {
  train::Registry registry;
  train::register_all_chapters(registry);
  const auto strategy = registry.make(
      mode, {*example.model, communicator, optimizer_named(optimizer), &example.values, ""});
  Record run;
  for (int step = 0; step < 3; ++step) {
    strategy->zero_grad();
    strategy->backward(strategy->forward(example.batch(communicator.rank(), step)));
    strategy->finish_backward();
    run.norms.push_back(clip(*strategy));
    strategy->optimizer_step();
    strategy->sync_parameters();
  }
  for (const nn::Parameter& p : strategy->list().parameters) {
    run.weights.push_back(p.tensor.detach().clone());
  }
  return run;
}

void expect_equal_weights(const Record& run, const Record& reference, const std::string& what) {
  ASSERT_EQ(run.weights.size(), reference.weights.size());
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(run.weights[i], reference.weights[i])) << what << ", parameter " << i;
  }
}

class ClipGradNorm : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNorm, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(ClipGradNorm, GivesTheNormOfTheWholeGradientOnEveryRank) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record run = train(communicator, toy(), "zero1", "sgd", yours(0.05));
    EXPECT_EQ(run.norms, train(communicator, toy(), "ddp", "sgd", library(0.05)).norms);
    EXPECT_GT(run.norms.front(), 0.05F) << "the test must have something to clip";
  });
}

TEST_P(ClipGradNorm, LeadsToTheWeightsOfDdpWithClipping) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const char* optimizer : {"sgd", "adamw"}) {
      expect_equal_weights(train(communicator, toy(), "zero1", optimizer, yours(0.05)),
                           train(communicator, toy(), "ddp", optimizer, library(0.05)), optimizer);
    }
  });
}

TEST_P(ClipGradNorm, LeavesAGradientAloneThatIsShortEnough) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Clip none = [](train::Strategy&) { return 0.0F; };
    expect_equal_weights(train(communicator, toy(), "zero1", "sgd", yours(1e6)),
                         train(communicator, toy(), "ddp", "sgd", none), "not clipped");
  });
}

TEST_P(ClipGradNorm, CopesWithTiedFrozenAndUnusedParameters) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record run = train(communicator, traps(), "zero1", "sgd", yours(0.05));
    const Record reference = train(communicator, traps(), "ddp", "sgd", library(0.05));
    EXPECT_EQ(run.norms, reference.norms);
    expect_equal_weights(run, reference, "traps");
  });
}

TEST_P(ClipGradNorm, AddsSquaresInTheOrderOfDdp) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::vector<float> expected =
        train(communicator, halfway(), "ddp", "sgd", library(1e9)).norms;
    EXPECT_EQ(expected.front(), 17807200.0F) << "the test must lie halfway";
    EXPECT_EQ(train(communicator, halfway(), "zero1", "sgd", yours(1e9)).norms, expected);
  });
}

}  // namespace
}  // namespace zero
