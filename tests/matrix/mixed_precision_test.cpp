// Training in 2-byte types with fp32 master weights: every strategy and variant like chapter 00 to
// the last bit, masters and moments too; the published bytes as the allocator counts them; sums in
// either type.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <tests/support/deferred.hpp>
#include <tests/support/states.hpp>
#include <tests/support/two_bytes.hpp>
#include <tests/support/whole_state.hpp>
#include <tools/models/mlp.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

std::string name_of(at::ScalarType dtype) { return dtype == at::kHalf ? "fp16" : "bf16"; }

constexpr at::ScalarType kHalves[] = {at::kBFloat16, at::kHalf};

void expect_like_ddp(dist::Communicator& communicator, const SessionOptions& options,
                     const std::function<void(Session&)>& script) {
  const auto play = [&](const std::string& mode) {
    Session session(communicator, mode, options);
    const WholeState before = whole_state(session);
    script(session);
    WholeState after = whole_state(session);
    EXPECT_FALSE(same_state(before, after)) << mode << " trained nothing";
    return after;
  };
  const WholeState reference = play("ddp");
  for (const std::string& mode : all_modes()) {
    EXPECT_TRUE(same_state(play(mode), reference))
        << mode << " " << name_of(options.model.dtype) << " sums in "
        << dist::name(options.reduce_type);
  }
}

ZERO_TESTS_ON_RANKS(MixedPrecision, 1, 2, 3, 4, 8);

// Clipped steps of two micro-batches, in the last of which a part is not used.
TEST_P(MixedPrecision, EveryModeEndsWithTheMastersMomentsAndWeightsOfDdp) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const auto accumulation :
         {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
      for (const at::ScalarType dtype : kHalves) {
        SessionOptions options = mixed(dtype);
        options.accumulation = accumulation;
        options.trainer.clip_norm = 0.3;
        expect_like_ddp(communicator, options, [](Session& session) {
          session.model().stop_after(4);
          const auto first = session.trainer().step({session.batch(0), session.batch(1)});
          EXPECT_GT(first.gradient_norm, 0.3) << "nothing was clipped";
          session.model().stop_after(2);
          session.trainer().step({session.batch(2), session.batch(3)});
        });
      }
    }
  });
}

ZERO_TESTS_ON_RANKS(MixedPrecisionFewRanks, 2, 3);

TEST_P(MixedPrecisionFewRanks, SumsInFloat32GiveTheSameBitsForTwiceTheBytes) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : kHalves) {
      for (const std::string& mode : all_modes()) {
        std::vector<WholeState> states;
        std::vector<std::int64_t> gradients, parameters;
        for (const auto reduce : {dist::ReduceType::kOwn, dist::ReduceType::kFloat32}) {
          SessionOptions options = mixed(dtype, reduce);
          options.model.parts = "anfsg";  // formulas are for units that are used once
          Session session(communicator, mode, options);
          session.step(0);
          const dist::Traffic before = communicator.traffic();
          session.step(1);
          const dist::Traffic sent = communicator.traffic().since(before);
          gradients.push_back(sent.bytes(dist::Purpose::kGradient));
          parameters.push_back(sent.bytes(dist::Purpose::kParameter));
          EXPECT_EQ(gradients.back() + parameters.back(), session.strategy().costs().sent)
              << mode << " sums in " << dist::name(reduce);
          states.push_back(whole_state(session));
        }
        EXPECT_TRUE(same_state(states[0], states[1])) << mode;
        EXPECT_EQ(gradients[1], 2 * gradients[0]) << mode;
        EXPECT_EQ(parameters[1], parameters[0]) << mode;
      }
    }
  });
}

// A ring adds as it goes: two numbers that float16 holds have a sum that it does not.
TEST(MixedPrecisionNative, Float16AddsInFloat32) {
  on_ranks({.world_size = 2, .order = dist::ReductionOrder::kNative},
           [](dist::Communicator& communicator) {
             const auto large = [] { return at::full({10}, 40000.0, at::kHalf); };
             at::Tensor all = large();
             communicator.all_reduce(all, dist::Purpose::kGradient).wait();
             EXPECT_TRUE(at::equal(all, large()));
             at::Tensor one = large();
             communicator.reduce(one, /*root=*/1, dist::Purpose::kGradient).wait();
             EXPECT_TRUE(at::equal(one, large()));
             at::Tensor input = large();
             at::Tensor piece = at::empty({5}, at::kHalf);
             communicator.reduce_scatter(piece, input, dist::Purpose::kGradient).wait();
             EXPECT_TRUE(at::equal(piece, large().narrow(0, 0, 5)));
             EXPECT_TRUE(at::equal(input, large())) << "the input was written to";
             EXPECT_EQ(communicator.reduced_element_size(at::kHalf, dist::ReduceType::kOwn), 4);
             EXPECT_EQ(communicator.reduced_element_size(at::kBFloat16, dist::ReduceType::kOwn), 2);
           });
}

// Sizes that are multiples of 64 on up to 8 ranks, so that there is no padding: 1,050,624
// parameters in four units of 262,656.
const tools::MlpConfig kEven{
    .inputs = 512, .hidden = {512, 512, 512}, .outputs = 512, .dtype = at::kBFloat16};

// Bytes of this rank at rest, by the allocator, after a step of `mode`.
train::ModelStateBytes measure(dist::Communicator& communicator, const std::string& mode) {
  const memory::Snapshot before = memory::snapshot();
  const auto model = make_deferred<tools::Mlp>(kEven);
  nn::SeededValues values(1);
  const auto strategy = make_strategy(
      mode, {*model, communicator, optim::with_master_weights(optim::adamw()), &values, ""});
  const data::Batch batch{.inputs = at::full({2, 512}, 0.5),
                          .targets = at::full({2, 512}, 0.1 * communicator.rank()),
                          .loss_terms = 2};
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  trainer.step({batch});
  trainer.step({batch});
  const train::ModelStateBytes held = states_since(before);
  EXPECT_EQ(text_of(held), text_of(strategy->costs().at_rest)) << mode;
  // Charges come from the code under test; the allocator's total does not.
  const std::int64_t of_batch = 2 * 2 * 512 * 4;
  EXPECT_LE(memory::snapshot().total - before.total - held.total(), of_batch + 64) << mode;
  return held;
}

ZERO_TESTS_ON_RANKS(MixedPrecisionBytes, 2, 4, 8);

// 16P, 4P + 12P/N, 2P + 14P/N, 16P/N: .625 .5625 .5 at two ranks, .4375 .34375 .25 at four,
// .34375 .234375 .125 at eight (Rajbhandari et al. 2020, figure 1).
TEST_P(MixedPrecisionBytes, AreThePublishedOnes) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    constexpr std::int64_t kP = 4 * (512 * 512 + 512);
    const std::int64_t n = communicator.size();
    const train::ModelStateBytes ddp = measure(communicator, "ddp");
    EXPECT_EQ(ddp.parameters, 2 * kP);
    EXPECT_EQ(ddp.gradients, 2 * kP);
    EXPECT_EQ(ddp.optimizer, 12 * kP);
    const std::map<std::string, std::int64_t> formulas = {{"tensor_zero1", 4 * kP + 12 * kP / n},
                                                          {"tensor_zero2", 2 * kP + 14 * kP / n},
                                                          {"tensor_zero3", 16 * kP / n}};
    const std::map<int, std::vector<double>> ratios = {
        {2, {.625, .5625, .5}}, {4, {.4375, .34375, .25}}, {8, {.34375, .234375, .125}}};
    std::size_t stage = 0;
    for (const auto& [mode, formula] : formulas) {
      const std::int64_t total = measure(communicator, mode).total();
      EXPECT_EQ(total, formula) << mode;
      EXPECT_EQ(static_cast<double>(total) / static_cast<double>(ddp.total()),
                ratios.at(communicator.size())[stage++])
          << mode;
    }
    for (const std::string mode : {"zero1", "zero2", "zero3"}) measure(communicator, mode);
  });
}

}  // namespace
}  // namespace zero::testing
