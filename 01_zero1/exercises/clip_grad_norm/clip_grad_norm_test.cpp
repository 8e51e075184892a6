// The same tests for your answer, for the solution and for the wrong answers.

#include "clip_grad_norm.hpp"

#include <fmt/format.h>

#include <harness.hpp>
#include <zero/train/registry.hpp>

#include "toy.hpp"

namespace zero {
namespace {

using testing::on_ranks;
using testing::Toy;

optim::OptimizerFactory optimizer_named(const std::string& name) {
  return name == "sgd" ? optim::sgd({.learning_rate = 0.1, .momentum = 0.9}) : optim::adamw();
}

struct Record {
  std::vector<float> norms;
  std::vector<at::Tensor> weights;
};

// Three steps; `clip` stands between the reduction of gradients and the optimizer.
Record train(dist::Communicator& communicator, const std::string& mode,
             const std::string& optimizer, const std::function<float(train::Strategy&)>& clip) {
  Toy toy;
  train::Registry registry;
  train::register_all_chapters(registry);
  const auto strategy =
      registry.make(mode, {*toy.model, communicator, optimizer_named(optimizer), &toy.values, ""});
  Record run;
  for (int step = 0; step < 3; ++step) {
    strategy->zero_grad();
    strategy->backward(strategy->forward(toy.batch(communicator.rank(), step)));
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

class ClipGradNorm : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNorm, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(ClipGradNorm, GivesTheNormOfTheWholeGradientOnEveryRank) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto mine = [](train::Strategy& s) { return clip_grad_norm(s, 0.05); };
    const auto reference = [](train::Strategy& s) { return s.clip_grad_norm(0.05); };
    const Record run = train(communicator, "zero1", "sgd", mine);
    EXPECT_EQ(run.norms, train(communicator, "ddp", "sgd", reference).norms);
    EXPECT_GT(run.norms.front(), 0.05F) << "the test must have something to clip";
  });
}

TEST_P(ClipGradNorm, LeadsToTheWeightsOfDdpWithClipping) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const char* optimizer : {"sgd", "adamw"}) {
      const Record run = train(communicator, "zero1", optimizer,
                               [](train::Strategy& s) { return clip_grad_norm(s, 0.05); });
      const Record reference = train(communicator, "ddp", optimizer,
                                     [](train::Strategy& s) { return s.clip_grad_norm(0.05); });
      for (std::size_t i = 0; i < run.weights.size(); ++i) {
        EXPECT_TRUE(at::equal(run.weights[i], reference.weights[i]))
            << optimizer << ", parameter " << i;
      }
    }
  });
}

TEST_P(ClipGradNorm, LeavesAGradientAloneThatIsShortEnough) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const Record run = train(communicator, "zero1", "sgd",
                             [](train::Strategy& s) { return clip_grad_norm(s, 1e6); });
    const Record reference =
        train(communicator, "ddp", "sgd", [](train::Strategy&) { return 0.0F; });
    for (std::size_t i = 0; i < run.weights.size(); ++i) {
      EXPECT_TRUE(at::equal(run.weights[i], reference.weights[i])) << "parameter " << i;
    }
  });
}

}  // namespace
}  // namespace zero
