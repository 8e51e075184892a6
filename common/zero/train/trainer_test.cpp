// The training loop by itself, on one rank and with a strategy that does nothing but count calls.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/train/trainer.hpp>

namespace zero::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::Toy;

// Plain training on one rank that writes down what the trainer asked of it.
class Diary final : public Strategy {
 public:
  using Strategy::Strategy;
  explicit Diary(const StrategyArguments& arguments) : Strategy(arguments) {
    broadcast_from_rank_0();
  }
  at::Tensor forward(const data::Batch& batch) override {
    lines.push_back("forward");
    return Strategy::forward(batch);
  }
  void backward(const at::Tensor& loss) override {
    lines.push_back(fmt::format("backward{}", requires_gradient_sync_ ? " of the last" : ""));
    Strategy::backward(loss);
  }
  void finish_backward() override {
    lines.push_back("finish_backward");
    if (!reduces_now()) return;
    for (std::size_t i = 0; i < count(); ++i) gradient_to_reduce(i);
    complete_reduction();
  }
  float clip_grad_norm(double max_norm, optim::Norm norm) override {
    lines.push_back(fmt::format("clip {}", max_norm));
    return Strategy::clip_grad_norm(max_norm, norm);
  }
  void optimizer_step() override {
    lines.push_back("optimizer_step");
    Strategy::optimizer_step();
  }
  void sync_parameters() override { lines.push_back("sync_parameters"); }
  void zero_grad() override {
    lines.push_back("zero_grad");
    Strategy::zero_grad();
  }
  ModelStateBytes predicted_bytes() const override { return {}; }
  std::int64_t predicted_traffic() const override { return 0; }

  std::vector<std::string> lines;
};

struct Bench {
  explicit Bench(dist::Communicator& communicator, TrainerOptions options = {})
      : diary({*toy.model, communicator, optim::sgd({.learning_rate = 0.1, .momentum = 0}),
               &toy.values, ""}),
        trainer(diary, options) {}

  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const nn::Parameter& p : diary.list().parameters) {
      copies.push_back(p.tensor.detach().clone());
    }
    return copies;
  }

  Toy toy;
  Diary diary;
  Trainer trainer;
};

TEST(Trainer, CallsTheStrategyInTheOrderOfTheContract) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator, {.clip_norm = 0.5});
    bench.trainer.step({bench.toy.batch(0, 0), bench.toy.batch(0, 1)});
    EXPECT_THAT(bench.diary.lines,
                ElementsAre("zero_grad", "forward", "backward", "finish_backward", "forward",
                            "backward of the last", "finish_backward", "clip 0.5", "optimizer_step",
                            "sync_parameters"));
    EXPECT_EQ(bench.trainer.steps(), 1);
  });
}

TEST(Trainer, DoesNotClipUnlessAsked) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const StepResult result = bench.trainer.step({bench.toy.batch(0, 0)});
    EXPECT_THAT(bench.diary.lines, Not(::testing::Contains(HasSubstr("clip"))));
    EXPECT_EQ(result.gradient_norm, 0.0F);
    EXPECT_TRUE(bench.diary.list().parameters[0].tensor.grad().defined());
    bench.trainer.zero_grad();
    EXPECT_FALSE(bench.diary.list().parameters[0].tensor.grad().defined());
  });
}

// Micro-batches of 1, 2 and 5 samples are one batch of 8: the same loss and gradients.
TEST(Trainer, WeighsMicroBatchesByTheirLossTerms) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench cut(communicator);
    Bench whole(communicator);
    const data::Batch all = cut.toy.batch(0, 0, /*samples=*/8);
    std::vector<data::Batch> parts;
    std::int64_t begin = 0;
    for (const std::int64_t size : {1, 2, 5}) {
      parts.push_back(
          {all.inputs.narrow(0, begin, size), all.targets.narrow(0, begin, size), {}, size});
      begin += size;
    }
    const double expected = whole.trainer.evaluate({all});
    const StepResult of_parts = cut.trainer.step(parts);
    const StepResult of_whole = whole.trainer.step({all});
    EXPECT_NEAR(of_parts.loss, expected, 1e-6);
    EXPECT_NEAR(of_whole.loss, expected, 1e-6);
    for (std::size_t i = 0; i < cut.diary.list().size(); ++i) {
      const at::Tensor ours = cut.diary.list().parameters[i].tensor.grad();
      const at::Tensor theirs = whole.diary.list().parameters[i].tensor.grad();
      EXPECT_LE((ours - theirs).abs().max().item<double>(),
                1e-5 * theirs.abs().max().item<double>());
    }
  });
}

TEST(Trainer, StepsGoDownhillAndAreCounted) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const data::Batch batch = bench.toy.batch(0, 0);
    const double first = bench.trainer.step({batch}).loss;
    double last = first;
    for (int s = 1; s < 20; ++s) last = bench.trainer.step({batch}).loss;
    EXPECT_LT(last, 0.9 * first);
    EXPECT_EQ(bench.trainer.steps(), 20);
    EXPECT_EQ(communicator.step(), 19);  // for error messages
  });
}

TEST(Trainer, EvaluationIsTheMeanOverTermsAndLeavesNoGradients) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const std::vector<at::Tensor> before = bench.weights();
    const data::Batch one = bench.toy.batch(0, 0, 1), five = bench.toy.batch(0, 1, 5);
    const double of_one = bench.trainer.evaluate({one}), of_five = bench.trainer.evaluate({five});
    EXPECT_NE(of_one, of_five);
    EXPECT_NEAR(bench.trainer.evaluate({one, five}), (of_one + 5 * of_five) / 6, 1e-7);
    EXPECT_EQ(bench.trainer.steps(), 0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const at::Tensor& parameter = bench.diary.list().parameters[i].tensor;
      EXPECT_TRUE(at::equal(parameter, before[i]));
      EXPECT_FALSE(parameter.grad().defined());
    }
  });
}

TEST(Trainer, TimesOfPhasesAddUpToTheStep) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const PhaseSeconds s = bench.trainer.step({bench.toy.batch(0, 0)}).seconds;
    EXPECT_NEAR(s.forward + s.backward + s.communication + s.optimizer, s.total, 1e-9);
    for (const double phase : {s.forward, s.backward, s.optimizer}) EXPECT_GT(phase, 0.0);
    EXPECT_GE(s.communication, 0.0);
  });
}

TEST(Trainer, RefusesStepsThatCannotBe) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const std::vector<at::Tensor> before = bench.weights();
    data::Batch nan = bench.toy.batch(0, 0);
    nan.inputs[0][0] = std::nan("");
    EXPECT_THAT(testing::error_of([&] { bench.trainer.step({nan}); }),
                HasSubstr("step 0: the loss is NaN or infinite on rank 0"));
    EXPECT_THAT(testing::error_of([&] { bench.trainer.step({}); }),
                HasSubstr("rank 0 has 0 micro-batches; every rank needs at least one"));
    EXPECT_THAT(
        testing::error_of([&] { bench.trainer.step({bench.toy.batch(0, 0, /*samples=*/0)}); }),
        HasSubstr("no rank has a loss term"));
    EXPECT_THAT(testing::error_of([&] { bench.trainer.evaluate({nan}); }),
                HasSubstr("NaN or infinite"));
    EXPECT_EQ(bench.trainer.steps(), 0);
    const std::vector<at::Tensor> after = bench.weights();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i]));
  });
}

}  // namespace
}  // namespace zero::train
