// The ladder program in 2-byte types: all modes to the same bits, bytes by formula, types by name.

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::figures_of;
using testing::kQuick;
using testing::row_of;
using testing::TestFolder;

// A text that never changes: whether float16 overflows depends on it.
const std::string kText = "--data LICENSE ";
// tests/matrix has the bits of every mode in both types.
const std::string kModes = "--modes ddp,zero2,zero3,tensor_zero3 ";

void expect_mixed(const json& report, const std::string& dtype) {
  EXPECT_EQ(report.at("dtype"), dtype);
  EXPECT_EQ(report.at("parameter_bytes"), 2 * report.at("parameters").get<std::int64_t>());
  for (const json& row : report.at("modes")) {
    EXPECT_EQ(row.at("identical_to_ddp"), true) << row.at("mode");
    EXPECT_LT(std::abs(row.at("formula_difference").get<double>()), 1e-3) << row.at("mode");
  }
}

TEST(LadderMixedPrecision, Float16HasALossScale) {
  const TestFolder folder;
  const json report = figures_of(folder, kQuick + kText + kModes + "--dtype fp16");
  expect_mixed(report, "fp16");
  const json& ddp = row_of(report, "ddp");
  const json float32 = figures_of(folder, kQuick + kText + "--modes ddp");
  for (const json& row : report.at("modes")) {
    EXPECT_GE(row.at("loss_scale"), 1);
    EXPECT_EQ(row.at("loss_scale"), ddp.at("loss_scale")) << row.at("mode");
    EXPECT_EQ(row.at("skipped_steps"), ddp.at("skipped_steps")) << row.at("mode");
    // Printed without the scale.
    EXPECT_NEAR(row.at("losses").at(0), row_of(float32, "ddp").at("losses").at(0), 0.05);
  }
}

// Master weights and moments are twelve bytes of optimizer.
TEST(LadderMixedPrecision, Bfloat16ReducedInFloat32DoublesTheGradientsOnTheWireAndNothingElse) {
  const TestFolder folder;
  const json own = figures_of(folder, kQuick + kModes + "--dtype bf16");
  expect_mixed(own, "bf16");
  EXPECT_EQ(own.at("reduce_dtype"), "parameter");
  const json wide = figures_of(folder, kQuick + kModes + "--dtype bf16 --reduce-dtype fp32");
  EXPECT_EQ(wide.at("reduce_dtype"), "fp32");
  for (const json& row : own.at("modes")) {
    const json& other = row_of(wide, row.at("mode"));
    EXPECT_EQ(other.at("sent_gradient_bytes"), 2 * row.at("sent_gradient_bytes").get<double>());
    EXPECT_EQ(other.at("sent_parameter_bytes"), row.at("sent_parameter_bytes"));
    EXPECT_EQ(other.at("ranks").at(0).at("digest"), row.at("ranks").at(0).at("digest"));
  }
}

}  // namespace
}  // namespace zero::ladder
