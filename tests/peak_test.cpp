// The peak of model states within a step beside the bounds of docs/formulas.md, and what the
// operating system counts beside what the allocator does.

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include <tests/support/batch_model.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/toy.hpp>
#include <tools/models/mlp.hpp>
#include <tools/models/presets.hpp>
#include <tools/support/process.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

// So many layers that a unit is little beside a rank's share.
std::shared_ptr<nn::Llama> twelve_layers() {
  nn::LlamaConfig config = tools::preset("tiny");
  config.layers = 12;
  return make_deferred<nn::Llama>(config);
}

data::Batch sixteen_tokens(int rank, int step) {
  const at::Tensor inputs = (at::arange(16).view({1, 16}) + 20 * rank + 3 * step).remainder(256);
  return {.inputs = inputs, .targets = (inputs + 1).remainder(256), .loss_terms = 16};
}

// Bytes of gradients of unit `u` that this rank does not hold.
std::int64_t missing_gradients(const nn::ParameterList& list, std::size_t u) {
  std::int64_t bytes = 0;
  for (const std::size_t i : list.units[u].parameters) {
    const nn::Parameter& p = list.parameters[i];
    if (!p.tensor.grad().defined()) bytes += p.bytes();
  }
  return bytes;
}

struct Peaks {
  std::int64_t states = 0;   // peak of parameters, gradients and optimizer together
  std::int64_t at_rest = 0;  // by the formula
  std::int64_t missing = 0;  // of the root and of one more unit, on this rank
  std::int64_t total = 0;    // peak of everything
};

// Of the second step, in which the moments are there from the beginning.
Peaks peaks_of(dist::Communicator& communicator, const std::string& mode) {
  const std::vector<data::Batch> first = {sixteen_tokens(communicator.rank(), 0)};
  const std::vector<data::Batch> second = {sixteen_tokens(communicator.rank(), 1)};
  const memory::Snapshot before = memory::snapshot();
  nn::SeededValues values(1);
  const std::shared_ptr<nn::Llama> model = twelve_layers();
  const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""});
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  trainer.step(first);
  trainer.zero_grad();
  memory::reset_peaks();
  trainer.step(second);
  const memory::Snapshot now = memory::snapshot();
  Peaks peaks;
  peaks.states = now.states_peak - before.model_states();
  peaks.total = now.total_peak - before.total;
  peaks.at_rest = strategy->costs().at_rest.total();
  std::int64_t of_unit = 0;
  for (std::size_t u = 1; u < strategy->list().units.size(); ++u) {
    of_unit = std::max(of_unit, missing_gradients(strategy->list(), u));
  }
  peaks.missing = missing_gradients(strategy->list(), 0) + of_unit;
  return peaks;
}

// Gradients that have not left yet are those of the root, whose embedding is used first and last in
// backward, and of one unit; stage 3 has gathered the parameters of both as well.
TEST(PeakOfStates, IsWithinTheDocumentedBoundAndFallsFromStageToStage) {
  on_ranks(4, [](dist::Communicator& communicator) {
    std::map<std::string, Peaks> peaks;
    for (const char* mode : {"ddp", "zero1", "zero2", "zero2:after", "zero3", "zero3:whole"}) {
      peaks[mode] = peaks_of(communicator, mode);
    }
    for (const char* mode : {"ddp", "zero1"}) {
      EXPECT_EQ(peaks[mode].states, peaks[mode].at_rest) << mode;
    }
    const std::int64_t of_zero2 = peaks["zero2"].at_rest + peaks["zero2"].missing;
    const std::int64_t of_zero3 = peaks["zero3"].at_rest + 2 * peaks["zero3"].missing;
    EXPECT_LE(peaks["zero2"].states, of_zero2);
    EXPECT_LE(peaks["zero3"].states, of_zero3);
    // What the bounds exclude: all gradients, and all parameters, at once.
    EXPECT_GT(peaks["zero2:after"].states, of_zero2);
    EXPECT_GT(peaks["zero3:whole"].states, of_zero3);
    EXPECT_GT(peaks["ddp"].total, peaks["zero1"].total);
    EXPECT_GT(peaks["zero1"].total, peaks["zero2"].total);
    EXPECT_GT(peaks["zero2"].total, peaks["zero3"].total);
  });
}

// Twelve hidden layers of 4 MiB, three for each of four ranks.
constexpr std::int64_t kLayerWidth = 1024;
constexpr std::int64_t kLayerBytes = 4 * kLayerWidth * kLayerWidth;
constexpr std::int64_t kLayers = 12;

data::Batch four_rows(int rank, int step) {
  return {.inputs = at::ones({4, kLayerWidth}) * (0.1 + rank) / (1 + step),
          .targets = at::ones({4, 8}),
          .loss_terms = 4};
}

// The resident set without what malloc keeps of freed memory, which depends on the order in which
// messages came.
std::int64_t trimmed_resident_set() {
  ::malloc_trim(0);
  return tools::resident_set_bytes();
}

// Growth of the resident set over the life of one strategy, from after another has run: the code of
// the libraries and their buffers are there by then.
std::int64_t growth_under(dist::Communicator& communicator, const std::string& mode) {
  {
    Toy toy;
    const auto warm =
        make_strategy(mode, {*toy.model, communicator, optim::adamw(), &toy.values, ""});
    tools::Trainer(*warm, losses_of(*warm)).step({toy.batch(communicator.rank(), 0)});
  }
  const std::int64_t before = trimmed_resident_set();
  const auto model = make_deferred<tools::Mlp>(
      tools::MlpConfig{.inputs = kLayerWidth,
                       .hidden = std::vector<std::int64_t>(kLayers, kLayerWidth),
                       .outputs = 8});
  nn::SeededValues values(1);
  const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""});
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  for (int step = 0; step < 3; ++step) trainer.step({four_rows(communicator.rank(), step)});
  return trimmed_resident_set() - before;
}

// Over TCP: memory that ranks share for want of another way would count as well.
class ResidentSet : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("ZERO_TRANSPORT", "tcp", /*overwrite=*/1); }
  void TearDown() override { ::unsetenv("ZERO_TRANSPORT"); }
};

// The allocator sees what LibTorch asks for; this is what the process takes of the machine.
TEST_F(ResidentSet, GrowsByAShareUnderZero3AndByEverythingUnderDdp) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer holds back memory that was freed";
#endif
  // A parameter, its gradient and its two moments are four copies, over four ranks.
  const std::int64_t share = kLayers * kLayerBytes;
  const std::int64_t slack = kLayerBytes;  // the output layer, and buffers of libraries
  const auto expect = [](const std::string& mode, const std::function<bool(std::int64_t)>& right) {
    on_ranks(4, [&](dist::Communicator& communicator) {
      const std::int64_t growth = growth_under(communicator, mode);
      EXPECT_TRUE(right(growth)) << mode << " grew by " << growth << " bytes";
    });
  };
  expect("zero3", [=](std::int64_t growth) { return growth <= share + slack; });
  expect("ddp", [=](std::int64_t growth) { return growth >= 4 * share; });
}

}  // namespace
}  // namespace zero::testing
