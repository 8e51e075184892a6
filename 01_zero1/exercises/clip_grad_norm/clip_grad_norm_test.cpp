// The same tests for your answer, for the solution and for the wrong answers.

#include "clip_grad_norm.hpp"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <tests/support/edge_case_model.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/train/registry.hpp>

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
  return {std::make_shared<testing::EdgeCaseModel>(), nn::SeededValues{5},
          [](int rank, int step) { return testing::edge_case_batch(17, rank, step); }};
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

// What is wrong with the norms of this rank, and with its weights, in one line; empty: nothing.
std::string wrong_norms(const Record& run, const Record& reference) {
  for (std::size_t s = 0; s < reference.norms.size(); ++s) {
    if (run.norms[s] == reference.norms[s]) continue;
    return fmt::format("the norm of step {} is {}, under DDP {}", s + 1, run.norms[s],
                       reference.norms[s]);
  }
  return "";
}

std::string wrong_weights(const Record& run, const Record& reference) {
  if (run.weights.size() != reference.weights.size()) return "there are other parameters";
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    if (at::equal(run.weights[i], reference.weights[i])) continue;
    return fmt::format("after three steps parameter {} is not what it is under DDP", i);
  }
  return "";
}

constexpr auto kDifferentNorms =
    "The ranks have different norms, each that of its own gradients: what the others own belongs "
    "to it too (hint 1).";
constexpr auto kNothingAdded = "Nothing has been added up.";
constexpr auto kRightNorm =
    "The first norm is right, what is done with it is not: every gradient that a rank owns is "
    "multiplied by clip_coefficient(), once, and no other gradient is.";
constexpr auto kAlmost =
    "Almost the norm of DDP: the squares were added in another order, or not in double (hint 3).";
constexpr auto kAveraged = "Smaller by the root of the number of ranks: averaged (hint 4)?";
constexpr auto kTooLarge =
    "Too large: a gradient counts on a rank that does not own it (hint 2), or norms were added "
    "and not their squares (hint 1).";
constexpr auto kTooSmall = "Too small: gradients that somebody owns were left out.";

// Which mistake it looks like. The norms of the first step tell: all weights are right until then.
// Called by all ranks.
std::string guess(dist::Communicator& communicator, const Record& run, const Record& reference) {
  const float norm = run.norms.front();
  const float right = reference.norms.front();
  const std::vector<std::string> all = communicator.exchange(fmt::format("{}", norm));
  const auto is_about = [right](double value) { return std::abs(value / right - 1) < 1e-5; };
  if (std::count(all.begin(), all.end(), all.front()) < communicator.size()) return kDifferentNorms;
  if (norm == 0) return kNothingAdded;
  if (norm == right) return kRightNorm;
  if (is_about(norm)) return kAlmost;
  if (is_about(norm * std::sqrt(communicator.size()))) return kAveraged;
  return norm > right ? kTooLarge : kTooSmall;
}

// Fails the test where a rank has something to say: once, on rank 0, by the first of them. Called
// by all ranks; gives on all of them whether nobody had.
bool expect_right(dist::Communicator& communicator, const std::string& wrong,
                  const std::string& looks_like) {
  const std::vector<std::string> said = communicator.exchange(wrong);
  const auto first =
      std::find_if(said.begin(), said.end(), [](const std::string& s) { return !s.empty(); });
  if (first == said.end()) return true;
  if (communicator.rank() == 0) {
    ADD_FAILURE() << fmt::format("rank {} of {}: {}\n{}", first - said.begin(), said.size(), *first,
                                 looks_like);
  }
  return false;
}

class ClipGradNorm : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNorm, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(ClipGradNorm, GivesTheNormOfTheWholeGradientOnEveryRank) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record run = train(communicator, toy(), "zero1", "sgd", yours(0.05));
    const Record ddp = train(communicator, toy(), "ddp", "sgd", library(0.05));
    ASSERT_GT(ddp.norms.front(), 0.05F) << "the test must have something to clip";
    expect_right(communicator, wrong_norms(run, ddp), guess(communicator, run, ddp));
  });
}

TEST_P(ClipGradNorm, LeadsToTheWeightsOfDdpWithClipping) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const char* optimizer : {"sgd", "adamw"}) {
      const Record run = train(communicator, toy(), "zero1", optimizer, yours(0.05));
      const Record ddp = train(communicator, toy(), "ddp", optimizer, library(0.05));
      const std::string looks_like = guess(communicator, run, ddp);
      if (!expect_right(communicator, wrong_weights(run, ddp), looks_like)) return;
    }
  });
}

TEST_P(ClipGradNorm, LeavesAGradientAloneThatIsShortEnough) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Clip none = [](train::Strategy&) { return 0.0F; };
    const Record run = train(communicator, toy(), "zero1", "sgd", yours(1e6));
    const Record ddp = train(communicator, toy(), "ddp", "sgd", none);
    expect_right(communicator, wrong_weights(run, ddp),
                 "The limit was larger than the norm: nothing was to be multiplied.");
  });
}

TEST_P(ClipGradNorm, CopesWithTiedFrozenAndUnusedParameters) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record run = train(communicator, traps(), "zero1", "sgd", yours(0.05));
    const Record ddp = train(communicator, traps(), "ddp", "sgd", library(0.05));
    const std::string norms = wrong_norms(run, ddp);
    expect_right(communicator, norms.empty() ? wrong_weights(run, ddp) : norms,
                 guess(communicator, run, ddp));
  });
}

TEST_P(ClipGradNorm, AddsSquaresInTheOrderOfDdp) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record ddp = train(communicator, halfway(), "ddp", "sgd", library(1e9));
    ASSERT_EQ(ddp.norms.front(), 17807200.0F) << "the test must lie halfway";
    const Record run = train(communicator, halfway(), "zero1", "sgd", yours(1e9));
    expect_right(communicator, wrong_norms(run, ddp), guess(communicator, run, ddp));
  });
}

}  // namespace
}  // namespace zero
