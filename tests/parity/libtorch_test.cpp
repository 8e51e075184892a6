// Every strategy of a chapter beside LibTorch alone: its operations, its autograd,
// clip_grad_norm_() and its optimizers, over the batches of all ranks in one process. Chapter 00
// shares Strategy, Trainer and the norm with the other chapters, so a comparison with it does not
// show a fault in these.

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>

#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/session.hpp>

#include "own_modes.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(LibTorch, 2, 3);

SessionOptions options_of_plain_model() {
  SessionOptions options;
  options.model = {.parts = "agfa", .tied = true, .dtype = at::kDouble};
  return options;
}

// The random model "agfa" without units, hooks or layers of this project.
class PlainModel {
 public:
  PlainModel() {
    const SessionOptions options = options_of_plain_model();
    RandomModel first(options.model);
    nn::SeededValues values(options.seed);
    nn::initialize_parameters(first, values);
    for (const nn::Parameter& p : nn::list_parameters(first).parameters) {
      names_.push_back(p.name);
      parameters_.push_back(p.tensor.detach().clone().set_requires_grad(p.tensor.requires_grad()));
    }
  }

  /// Adds the gradients of the mean over `batch` of a loss that uses the first `parts` parts,
  /// which it returns.
  at::Tensor backward(const data::Batch& batch, std::size_t parts) const {
    at::Tensor x = at::linear(batch.inputs, of("first"));
    if (parts > 0) x = at::linear(x, of("parts.0.weight"), of("parts.0.bias")).tanh();
    if (parts > 1) x = x * of("scale1");
    if (parts > 2) x = x + at::linear(x, of("parts.2.weight"));
    if (parts > 3) x = at::linear(x, of("parts.3.weight"), of("parts.3.bias")).tanh();
    const at::Tensor y = x.matmul(of("first")).sum(1, /*keepdim=*/true);
    const at::Tensor loss = at::mse_loss(y, batch.targets);
    loss.backward();
    return loss;
  }
  void zero_grad() const {
    for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
  }
  void scale_gradients(double factor) const {
    for (const at::Tensor& p : parameters_) {
      if (p.grad().defined()) p.mutable_grad().mul_(factor);
    }
  }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : parameters_) all.push_back(p.grad());
    return all;
  }
  std::vector<at::Tensor> trainable() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : parameters_) {
      if (p.requires_grad()) all.push_back(p);
    }
    return all;
  }

 private:
  const at::Tensor& of(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return parameters_.at(static_cast<std::size_t>(found - names_.begin()));
  }

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;  // in registration order
};

// Uneven, and empty for a rank now and then.
std::int64_t samples_of(int rank, int micro_batch) { return (3 * rank + 2 * micro_batch + 4) % 5; }

data::Batch micro_batch(int rank, int number) {
  return random_model_batch(options_of_plain_model().model, /*seed=*/17, rank, number,
                            samples_of(rank, number));
}

// Micro-batches `first` to `last` of all ranks.
data::Batch of_all_ranks(int ranks, int first, int last) {
  std::vector<data::Batch> all;
  for (int m = first; m < last; ++m) {
    for (int rank = 0; rank < ranks; ++rank) all.push_back(micro_batch(rank, m));
  }
  return concatenate(all);
}

using TorchOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <typename Optimizer, typename Options>
TorchOptimizer of_libtorch(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

// Ours and LibTorch's.
std::vector<std::pair<optim::OptimizerFactory, TorchOptimizer>> optimizers() {
  namespace to = torch::optim;
  return {{optim::adamw({.learning_rate = 0.01, .weight_decay = 0.1}),
           of_libtorch<to::AdamW>(to::AdamWOptions(0.01).weight_decay(0.1))},
          {sgd(0.05), of_libtorch<to::SGD>(to::SGDOptions(0.05).momentum(0.9))}};
}

// Three steps of two micro-batches; the loss of the second leaves the last part out.
void expect_trained_like_libtorch(dist::Communicator& communicator, const std::string& mode,
                                  const SessionOptions& options,
                                  const TorchOptimizer& make_optimizer) {
  Session session(communicator, mode, options);
  const PlainModel plain;
  const auto optimizer = make_optimizer(plain.trainable());
  for (int s = 0; s < 3; ++s) {
    const std::size_t parts = s == 1 ? 3 : 4;
    session.model().stop_after(parts);
    const int rank = communicator.rank();
    const tools::StepResult step =
        session.trainer().step({micro_batch(rank, 2 * s), micro_batch(rank, 2 * s + 1)});
    plain.zero_grad();
    const at::Tensor loss =
        plain.backward(of_all_ranks(communicator.size(), 2 * s, 2 * s + 2), parts);
    EXPECT_NEAR(step.loss, loss.item<double>(), 1e-6 * loss.item<double>()) << mode;
    const double expected =
        torch::nn::utils::clip_grad_norm_(plain.parameters(), options.trainer.clip_norm);
    EXPECT_GT(expected, options.trainer.clip_norm) << "nothing was clipped";
    EXPECT_NEAR(step.gradient_norm, expected, 1e-6 * expected) << mode << " step " << s;
    EXPECT_TRUE(close_to(session.gradients(), plain.gradients(), 1e-6)) << mode << " step " << s;
    optimizer->step();
  }
  EXPECT_TRUE(close_to(session.weights(), plain.parameters(), 1e-5)) << mode;
}

TEST_P(LibTorch, ClippedStepsOfUnevenMicroBatchesAreThoseOfOneProcess) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const auto& [ours, torchs] : optimizers()) {
      for (const auto accumulation :
           {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
        SessionOptions options = options_of_plain_model();
        options.optimizer = ours;
        options.accumulation = accumulation;
        options.trainer.clip_norm = 0.1;
        for (const std::string& mode : own_modes()) {
          expect_trained_like_libtorch(communicator, mode, options, torchs);
        }
      }
    }
  });
}

// So small that the 1e-6 beside the norm counts.
TEST_P(LibTorch, NormsAreThoseOfClipGradNormAndSoIsWhatTheyClip) {
  on_own_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode, options_of_plain_model());
    train::Strategy& strategy = session.strategy();
    for (const double size : {1.0, 1e-5}) {
      const PlainModel plain;
      std::vector<data::Batch> all;
      for (int rank = 0; rank < communicator.size(); ++rank) {
        all.push_back(random_model_batch(session.model().config(), /*seed=*/17, rank, 0));
      }
      plain.backward(concatenate(all), 4);
      const double before =
          torch::nn::utils::clip_grad_norm_(plain.parameters(), std::numeric_limits<double>::max());
      plain.scale_gradients(size / before);
      strategy.zero_grad();
      strategy.backward(forward_batch(strategy, session.batch(0)));
      strategy.finish_backward();
      strategy.averaged_gradients().multiply(size / before);
      const float norm = strategy.clip_grad_norm(size / 2);
      const double expected = torch::nn::utils::clip_grad_norm_(plain.parameters(), size / 2);
      EXPECT_NEAR(norm, expected, 1e-6 * expected) << size;
      EXPECT_TRUE(close_to(session.gradients(), plain.gradients(), 1e-6)) << size;
    }
  });
}

}  // namespace
}  // namespace zero::testing
