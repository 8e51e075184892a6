// The training loop by itself, on one rank and with a strategy that does nothing but count calls.

#include "trainer.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/train/loop/loss_scale.hpp>

namespace zero::tools {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::Toy;

// Plain training on one rank that writes down what the trainer asked of it.
class Diary final : public train::Strategy {
 public:
  using Strategy::Strategy;
  explicit Diary(const train::StrategyArguments& arguments) : Strategy(arguments) {
    broadcast_first_values();
  }
  at::Tensor forward(const std::function<at::Tensor()>& pass,
                     std::optional<std::int64_t> loss_terms) override {
    lines.push_back("forward");
    return Strategy::forward(pass, loss_terms);
  }
  void backward(const at::Tensor& loss) override {
    lines.push_back(fmt::format("backward{}", reduces_now() ? " of the last" : ""));
    Strategy::backward(loss);
  }
  void finish_backward() override {
    lines.push_back("finish_backward");
    if (!reduces_now()) return;
    for (std::size_t i = 0; i < count(); ++i) gradient_to_reduce(i);
    Strategy::finish_backward();
  }
  float clip_grad_norm(double max_norm) override {
    lines.push_back(fmt::format("clip {}", max_norm));
    return Strategy::clip_grad_norm(max_norm);
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
  train::Costs costs() const override { return {}; }

  std::vector<std::string> lines;
};

struct Bench {
  explicit Bench(dist::Communicator& communicator, train::StepOptions options = {})
      : diary({*toy.model, communicator, testing::sgd(0.1, 0.0), &toy.values, ""}),
        trainer(diary, losses_of(*toy.model), options) {}

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
    bench.trainer.step({bench.toy.batch(0, 2)});
    EXPECT_EQ(bench.trainer.steps(), 2);
    EXPECT_EQ(communicator.step(), 1);  // for error messages
    Bench plain(communicator);
    EXPECT_EQ(plain.trainer.step({plain.toy.batch(0, 0)}).gradient_norm, 0.0F);
    EXPECT_THAT(plain.diary.lines, Not(::testing::Contains(HasSubstr("clip"))));
    EXPECT_TRUE(plain.diary.list().parameters[0].tensor.grad().defined());
    plain.trainer.zero_grad();
    EXPECT_FALSE(plain.diary.list().parameters[0].tensor.grad().defined());
  });
}

TEST(Trainer, EvaluationIsTheMeanOverTermsAndLeavesNoGradients) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    const std::vector<at::Tensor> before = testing::whole_weights(bench.diary);
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

// What steps are refused, tests/faults/refused_calls_test.cpp checks on several ranks.
TEST(Trainer, RefusesToEvaluateToNaN) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Bench bench(communicator);
    data::Batch nan = bench.toy.batch(0, 0);
    nan.inputs[0][0] = std::nan("");
    testing::expect_error([&] { bench.trainer.evaluate({nan}); }, {"infinite or NaN"});
  });
}

using Notes = std::map<std::string, std::string>;

Notes notes_of(const train::LossScale& scale) {
  Notes notes;
  scale.write_to(notes);
  return notes;
}

// The scale after `events`: 'g' for a good step, 'o' for an overflow above a scale of one, and '1'
// for one at a scale of one.
double scale_after(const train::LossScaleOptions& options, const std::string& events) {
  train::LossScale scale(options);
  for (const char event : events) {
    if (event == 'g') {
      scale.note_good_step();
    } else {
      EXPECT_EQ(scale.note_overflow(), event == 'o');
    }
  }
  return scale.value();
}

TEST(LossScale, GrowsAfterGoodStepsAndHalvesAtAnOverflow) {
  EXPECT_EQ(scale_after({}, ""), 65536.0);
  EXPECT_EQ(scale_after({}, std::string(1999, 'g')), 65536.0);
  EXPECT_EQ(scale_after({}, std::string(2000, 'g')), 131072.0);
  const train::LossScaleOptions options{.initial = 8, .growth_steps = 3};
  EXPECT_EQ(scale_after(options, "ggo"), 4.0);
  EXPECT_EQ(scale_after(options, "ggogg"), 4.0) << "steps before the overflow were counted";
  EXPECT_EQ(scale_after(options, "ggoggg"), 8.0);
  EXPECT_EQ(scale_after({.initial = 2, .growth_steps = 1}, "o1"), 1.0);
  EXPECT_EQ(scale_after({.initial = 2, .growth_steps = 1}, "o1" + std::string(1000, 'g')), 0x1p100);
}

TEST(LossScale, GoesOnFromItsNotes) {
  train::LossScale first({.initial = 16, .growth_steps = 4});
  first.note_overflow();
  first.note_good_step();
  train::LossScale second({.initial = 65536, .growth_steps = 4});
  second.resume_from(notes_of(first));
  for (int step = 0; step < 9; ++step) {
    first.note_good_step();
    second.note_good_step();
    EXPECT_EQ(notes_of(first), notes_of(second));
  }
  EXPECT_EQ(second.value(), 32.0);
}

TEST(LossScale, GoesOnFromAnyNumberOfGoodSteps) {
  train::LossScale scale({.initial = 2, .growth_steps = 3});
  scale.resume_from({{"loss scale", "2 9223372036854775807"}});
  scale.note_good_step();
  EXPECT_EQ(scale.value(), 4.0);
  EXPECT_EQ(notes_of(scale), (Notes{{"loss scale", "4 0"}}));
}

TEST(LossScale, RefusesOtherNotesAndStaysAsItIs) {
  train::LossScale scale({.initial = 0x1p40, .growth_steps = 4});
  scale.note_good_step();
  const Notes before = notes_of(scale);
  scale.resume_from({});
  EXPECT_EQ(notes_of(scale), before);
  for (const char* wrong : {"", "2", "2 x", "2 1 0", "3 0", "two 0", "2 -1", "inf 0", "0 0"}) {
    EXPECT_THROW(scale.resume_from({{"loss scale", wrong}}), Error) << wrong;
    EXPECT_EQ(notes_of(scale), before) << wrong;
  }
}

TEST(LossScale, RefusesWhatIsNoScale) {
  for (const double wrong :
       {0.0, -2.0, 3.0, 0.5, 65535.0, 0x1p101, std::numeric_limits<double>::infinity()}) {
    expect_error([&] { train::LossScale({.initial = wrong}); }, {"power of two"});
  }
  expect_error([] { train::LossScale({.growth_steps = 0}); }, {"1 or more"});
}

}  // namespace
}  // namespace zero::tools
