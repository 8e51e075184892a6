// Reading a parameter where the stage has it in shards: an error by name on every rank.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
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

class UnshardedRead : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, UnshardedRead, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(UnshardedRead, BetweenStepsIsAnErrorThatNamesParameterAndUnit) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : stage_3_modes()) {
      ScriptedRun run(communicator, mode);
      for (int s = 0; s < 2; ++s) {
        for (const nn::Parameter& p : run.strategy->list().parameters) {
          EXPECT_THAT(read_error(p.tensor), says(p.name)) << mode;
          EXPECT_THAT(read_error(p.tensor.view({-1})), says(p.name)) << mode;
          EXPECT_THAT(read_error(p.tensor.detach()), says(p.name)) << mode;
        }
        run.step(s);
      }
    }
  });
}

// After the error training resumes as if nothing had been.
void expect_to_resume(ScriptedRun& run, dist::Communicator& communicator, const std::string& mode) {
  ScriptedRun undisturbed(communicator, mode);
  for (ScriptedRun* each : {&run, &undisturbed}) {
    for (int s = 0; s < 2; ++s) each->step(s);
  }
  EXPECT_TRUE(same_bits(whole_weights(*run.strategy), whole_weights(*undisturbed.strategy)))
      << mode;
}

TEST_P(UnshardedRead, InForwardIsAnErrorAfterWhichTrainingResumes) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : stage_3_modes()) {
      if (mode.ends_with("whole")) continue;  // all units are whole in forward
      ScriptedRun run(communicator, mode);
      for (const nn::Parameter& p : run.strategy->list().parameters) {
        if (p.name == "head") continue;
        run.model->in_forward = [&] { p.tensor.square().sum(); };
        EXPECT_THAT(error_of([&] { run.step(0); }), says(p.name)) << mode;
      }
      run.model->in_forward = {};
      expect_to_resume(run, communicator, mode);
    }
  });
}

TEST_P(UnshardedRead, InBackwardIsAnErrorAfterWhichTrainingResumes) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : stage_3_modes()) {
      if (mode.ends_with("whole")) continue;
      ScriptedRun run(communicator, mode);
      for (const char* name : {"scale", "shift"}) {
        // The engine may have fetched the last block ahead; the first is in shards for certain.
        const at::Tensor p = *run.model->blocks.front()->named_parameters().find(name);
        run.model->in_backward = [&] { p.square().sum(); };
        EXPECT_THAT(error_of([&] { run.step(0); }), says(fmt::format("block0.{}", name))) << mode;
      }
      run.model->in_backward = {};
      expect_to_resume(run, communicator, mode);
    }
  });
}

// The scope holds while forward and backward run, and the update is refused until it ends.
TEST_P(UnshardedRead, IsAllowedInTheScopeWhateverRuns) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : stage_3_modes()) {
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
        run.strategy->backward(run.strategy->forward(run.batch(1)));
        run.strategy->finish_backward();
        read();
        EXPECT_THAT(error_of([&] { run.strategy->optimizer_step(); }),
                    HasSubstr("while train::UnshardedParameters"))
            << mode;
      }
      run.strategy->optimizer_step();
      run.strategy->sync_parameters();
      EXPECT_EQ(norms, std::vector<double>(4, norms.front())) << mode;
      EXPECT_NE(read_error(scale), "no error") << mode;
    }
  });
}

// A penalty on weights, made before or after the model's forward, in a scope that ends before
// backward or after it.
TEST_P(UnshardedRead, WithAGradientTrainsAsUnderDdp) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const bool before : {true, false}) {
      for (const bool held : {false, true}) {
        SCOPED_TRACE(fmt::format("before {}, held {}", before, held));
        expect_scripts_like_ddp(communicator, {}, [&](ScriptedRun& run) {
          for (int s = 0; s < 2; ++s) {
            train::Strategy& strategy = *run.strategy;
            strategy.zero_grad();
            at::Tensor loss;
            if (!before) loss = strategy.forward(run.batch(s));
            {
              const auto whole = std::make_unique<train::UnshardedParameters>(
                  strategy, run.unit_of("block1.scale"));
              const at::Tensor penalty = run.model->blocks[1]->scale.pow(3).sum();
              std::unique_ptr<train::UnshardedParameters> other;
              if (before) loss = strategy.forward(run.batch(s));
              loss = loss + 0.1 * penalty;
              if (held) strategy.backward(loss);
            }
            if (!held) strategy.backward(loss);
            strategy.finish_backward();
            strategy.optimizer_step();
            strategy.sync_parameters();
          }
        });
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
