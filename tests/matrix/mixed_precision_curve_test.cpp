// Loss curves of a language model in 2-byte types beside that in fp32, over a few hundred steps.

#include <tests/support/curve.hpp>
#include <tools/ladder/data/text.hpp>

namespace zero::testing {
namespace {

TEST(SlowMixedPrecision, LearnsAsFp32DoesOverThreeHundredSteps) {
  on_ranks({.world_size = 2, .total_timeout = std::chrono::seconds(500)},
           [](dist::Communicator& communicator) {
             const data::LanguageModelDataset dataset(
                 data::text_from_files({"tools/ladder/data/fixtures/reviews.csv"}), /*length=*/32);
             const auto train = [&](const char* mode, at::ScalarType dtype, bool masters) {
               return curve_of(communicator, dataset, {mode, dtype, 300, 5e-4, masters});
             };
             const Curve fp32 = train("ddp", at::kFloat, false);
             const Curve bf16 = train("tensor_zero3", at::kBFloat16, true);
             const Curve without_masters = train("ddp", at::kBFloat16, false);
             const Curve fp16 = train("tensor_zero2", at::kHalf, true);
             const double first = fp32.losses.front(), last = fp32.end(20);
             EXPECT_LT(last, 0.75 * first) << "nothing was learned";
             // One part in a hundred of what was learned.
             const double tolerance = 0.01 * (first - last);
             EXPECT_NEAR(bf16.end(20), last, tolerance);
             EXPECT_NEAR(fp16.end(20), last, tolerance);
             EXPECT_GT(without_masters.end(20), last + tolerance)
                 << "without master weights it should be worse: the test tells nothing apart";
             EXPECT_LT(fp16.skipped, 10);
           });
}

}  // namespace
}  // namespace zero::testing
