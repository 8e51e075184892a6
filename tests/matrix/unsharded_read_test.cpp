// Reading a parameter where the stage has it in shards: an error by name on every rank.

#include <tests/support/error_of.hpp>
#include <tests/support/scripted_model.hpp>
#include <tests/support/session.hpp>
#include <tests/support/whole_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What LibTorch throws where no function of the library is around.
std::string read_error(const at::Tensor& parameter) {
  try {
    parameter.square().sum();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// Leaves are units of their own, whose names begin with that of the block.
auto says(const std::string& name) {
  const std::string unit = name == "head" ? "of the root" : "of unit '" + name.substr(0, 6);
  return AllOf(HasSubstr("'" + name + "'"), HasSubstr(unit),
               HasSubstr("hold train::UnshardedParameters"));
}

ZERO_TESTS_ON_RANKS(UnshardedRead, 1, 2, 3);

TEST_P(UnshardedRead, BetweenStepsIsAnErrorThatNamesParameterAndUnit) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             ScriptedRun run(communicator, mode);
             for (int s = 0; s < 2; ++s) {
               for (const nn::Parameter& p : run.strategy->list().parameters) {
                 EXPECT_THAT(read_error(p.tensor), says(p.name));
                 EXPECT_THAT(read_error(p.tensor.view({-1})), says(p.name));
                 EXPECT_THAT(read_error(p.tensor.detach()), says(p.name));
               }
               run.step(s);
             }
           });
}

// At `hook` each of the parameters that `reads` names is read: an error, after which training
// resumes as if nothing had been.
void expect_errors_and_resume(int ranks, std::function<void()> ScriptedModel::*hook,
                              const std::function<bool(const std::string& name)>& reads) {
  on_modes(ranks, stage_3_modes(), [&](dist::Communicator& communicator, const std::string& mode) {
    if (mode.ends_with("whole")) return;  // all units are whole in forward
    ScriptedRun run(communicator, mode), undisturbed(communicator, mode);
    for (const nn::Parameter& p : run.strategy->list().parameters) {
      if (!reads(p.name)) continue;
      (*run.model).*hook = [&] { p.tensor.square().sum(); };
      EXPECT_THAT(error_of([&] { run.step(0); }), says(p.name));
    }
    (*run.model).*hook = {};
    for (ScriptedRun* each : {&run, &undisturbed}) {
      for (int s = 0; s < 2; ++s) each->step(s);
    }
    EXPECT_TRUE(same_bits(whole_weights(*run.strategy), whole_weights(*undisturbed.strategy)));
  });
}

TEST_P(UnshardedRead, InForwardIsAnErrorAfterWhichTrainingResumes) {
  expect_errors_and_resume(GetParam(), &ScriptedModel::in_forward,
                           [](const std::string& name) { return name != "head"; });
}

// The engine may have fetched the last block ahead; the first is in shards for certain.
TEST_P(UnshardedRead, InBackwardIsAnErrorAfterWhichTrainingResumes) {
  expect_errors_and_resume(GetParam(), &ScriptedModel::in_backward, [](const std::string& name) {
    return name == "block0.scale" || name == "block0.shift";
  });
}

// The scope holds while forward and backward run, and the update is refused until it ends.
TEST_P(UnshardedRead, IsAllowedInTheScopeWhateverRuns) {
  on_modes(GetParam(), stage_3_modes(),
           [](dist::Communicator& communicator, const std::string& mode) {
             ScriptedRun run(communicator, mode);
             run.step(0);
             std::vector<double> norms;
             const at::Tensor& scale = run.model->blocks.front()->scale;
             const auto read = [&] { norms.push_back(scale.detach().norm().item<double>()); };
             run.model->in_forward = read;
             run.model->in_backward = read;
             {
               const train::UnshardedParameters whole(*run.strategy, run.unit_of("block0.scale"));
               read();
               run.strategy->zero_grad();
               run.strategy->backward(forward_batch(*run.strategy, run.batch(1)));
               run.strategy->finish_backward();
               read();
               expect_error([&] { run.strategy->optimizer_step(); },
                            {"while train::UnshardedParameters"});
             }
             run.strategy->optimizer_step();
             run.strategy->sync_parameters();
             EXPECT_EQ(norms, std::vector<double>(4, norms.front()));
             EXPECT_NE(read_error(scale), "no error");
           });
}

}  // namespace
}  // namespace zero::testing
