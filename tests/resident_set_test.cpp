// What the operating system counts of model states, beside what the allocator does.

#include <ATen/ops/ones.h>
#include <malloc.h>

#include <cstdlib>
#include <functional>

#include <tests/support/batch_model.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/toy.hpp>
#include <tools/models/mlp.hpp>
#include <tools/support/process.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

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
