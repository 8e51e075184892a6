// What programs do with autograd around and inside units.

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/error_of.hpp>
#include <tests/support/scripted_model.hpp>
#include <tests/support/session.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/base/error.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(Autograd, 2, 3);

// Stage 3 meets it in forward, where the parameters are read. Where they are whole it does not
// matter.
TEST_P(Autograd, AForgottenRunIsAnErrorThatNamesTheUnit) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    ScriptedRun run(communicator, mode, {.forgets_run = 1});
    const std::string error = error_of([&] { run.step(0); });
    if (run.strategy->passes().schedule().units() == train::Units::kWhole) {
      EXPECT_EQ(error, "");
      return;
    }
    EXPECT_THAT(error, AllOf(HasSubstr("'block1."), HasSubstr("unit 'block1'"),
                             HasSubstr("train::UnshardedParameters")));
  });
}

// A forward without a graph inside the loss, such as that of a teacher.
TEST_P(Autograd, AForwardWithoutAGraphInsideTheLossCostsNoMemory) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             ScriptedRun run(communicator, mode, {.blocks = 8});
             for (int s = 0; s < 3; ++s) run.step(s);
             const std::int64_t plain = run.peak_of_step(3);
             run.model->before_loss = [&](const data::Batch& batch) {
               const c10::NoGradGuard no_grad;
               run.model->predict(batch);
             };
             EXPECT_LE(run.peak_of_step(4), plain);
             run.model->before_loss = {};
             run.model->in_forward = [&] {
               const c10::NoGradGuard no_grad;
               for (const auto& block : run.model->blocks) block->forward(run.batch(0).inputs);
             };
             EXPECT_LE(run.peak_of_step(5), plain);
           });
}

TEST_P(Autograd, APassThatThrewCostsTheNextStepNoMemory) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             ScriptedRun run(communicator, mode, {.blocks = 8});
             for (int s = 0; s < 3; ++s) run.step(s);
             const std::int64_t plain = run.peak_of_step(3);
             for (const std::size_t at : {3U, 7U}) {
               SCOPED_TRACE(at);
               auto& within = run.model->blocks[at]->inside;
               const auto expect_no_cost = [&](const std::string& what, int number) {
                 EXPECT_EQ(error_of([&] { run.step(number); }), what);
                 run.model->after_block = {};
                 within = {};
                 run.strategy->passes().observe_gradients({});
                 run.strategy->zero_grad();  // what Engine::give_up_step() does
                 EXPECT_LE(run.peak_of_step(number + 1), plain) << what;
               };
               std::size_t calls = 0;
               run.model->after_block = [&](const at::Tensor& x) {
                 if (calls++ == at) throw Error("after the block");
                 return x;
               };
               expect_no_cost("after the block", 4);
               within = [](const at::Tensor&) -> at::Tensor { throw Error("within"); };
               expect_no_cost("within", 6);
               const std::string shift = fmt::format("block{}.shift", at);
               run.strategy->passes().observe_gradients([&](std::size_t i, const at::Tensor&) {
                 if (run.strategy->list().parameters[i].name == shift) throw Error("backward");
               });
               expect_no_cost("backward", 8);
             }
           });
}

// As one does to look at activations. What it has gathered must not be taken for the values after
// an update.
TEST_P(Autograd, AUnitThatThrewByItselfIsTrainedOn) {
  expect_scripts_like_ddp(GetParam(), {}, [](ScriptedRun& run) {
    for (int s = 0; s < 3; ++s) {
      auto& inside = run.model->blocks[1]->inside;
      inside = [](const at::Tensor&) -> at::Tensor { throw Error("here"); };
      EXPECT_EQ(error_of([&] { run.model->blocks[1]->forward(run.batch(0).inputs); }), "here");
      inside = {};
      run.step(s);
    }
  });
}

// Units that keep frozen parameters are dropped where another begins: a deeper model has no higher
// peak.
TEST_P(Autograd, FrozenUnitsAreDroppedWhereTheNextOneBegins) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             // All are whole, or as many as the time of gathers says.
             if (mode.ends_with("whole") || mode.ends_with("auto")) return;
             const auto peak = [&](int blocks) {
               ScriptedRun run(communicator, mode, {.blocks = blocks, .biases_only = true});
               for (int s = 0; s < 2; ++s) run.step(s);
               return run.peak_of_step(2);
             };
             const std::int64_t of_twelve = peak(12);
             const std::int64_t block = (6 * 6 + 2 * 6) * 4;
             EXPECT_LE(of_twelve, peak(6) + block);
           });
}

}  // namespace
}  // namespace zero::testing
