// SmolLM2-360M as one rank of large worlds, in real allocations: a whole step of the real chapter
// code, with forward and backward.
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <cmath>

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tools/plan/stages.hpp>
#include <zero/distributed/fake/fake_backend.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/loop/trainer.hpp>

namespace zero::testing {
namespace {

struct Place {
  int rank;
  int size;
  /// Padding lies at the end of a buffer, so that the last ranks of a large world hold less.
  bool full = true;
};

void PrintTo(const Place& place, std::ostream* out) { *out << place.rank << " of " << place.size; }

class SlowAllocations : public ::testing::TestWithParam<Place> {};

TEST_P(SlowAllocations, AreTheFormulasBytesForBytes) {
  on_ranks(1, [](dist::Communicator&) {
    const memory::Snapshot before = memory::snapshot();
    const nn::LlamaConfig config = nn::preset("smollm2-360m");
    const auto model = make_deferred<nn::Llama>(config);
    nn::SeededValues values(42);
    const auto [rank, size, full] = GetParam();
    dist::Communicator communicator = dist::connect_fake(rank, size);
    const auto strategy =
        make_strategy("tensor_zero3", {*model, communicator, optim::adamw(), &values, ""});
    const at::Tensor inputs = at::arange(8).view({1, 8});
    const data::Batch batch{.inputs = inputs, .targets = inputs + 1, .loss_terms = 8};
    memory::reset_peaks();
    const train::StepResult step = train::Trainer(*strategy).step({batch});

    const train::ModelStateBytes held = states_since(before);
    EXPECT_EQ(text_of(held), text_of(strategy->costs().at_rest));
    const auto planned = static_cast<double>(
        plan::model_states(config.parameters(), plan::fp32(), plan::Stage::kZero3, size).total());
    const auto states = static_cast<double>(held.total());
    EXPECT_LT(states, 1.01 * planned);
    if (full) {
      EXPECT_GT(states, 0.99 * planned);
    } else {
      EXPECT_LT(states, 0.9 * planned);
    }
    // A model that knows nothing yet finds every one of 49152 tokens about as likely.
    EXPECT_NEAR(step.loss, std::log(49152.0), 0.5);
  });
}

INSTANTIATE_TEST_SUITE_P(SmolLm2, SlowAllocations,
                         ::testing::Values(Place{0, 4}, Place{6, 7}, Place{5, 16}, Place{31, 32},
                                           Place{60, 100}, Place{0, 128}, Place{330, 333},
                                           Place{509, 512}, Place{511, 512, false}),
                         [](const auto& info) {
                           return fmt::format("Rank{}of{}", info.param.rank, info.param.size);
                         });

}  // namespace
}  // namespace zero::testing
