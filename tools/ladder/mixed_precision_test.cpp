// The ladder program in 2-byte types: all modes to the same bits, bytes by formula, types by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

const std::string kModes = "--modes ddp,zero1,zero2,zero3,tensor_zero1,tensor_zero2,tensor_zero3 ";

json report_of(const TestFolder& folder, const std::string& options) {
  const ProcessResult ended = run_ladder(folder, kQuick + kModes + options);
  EXPECT_EQ(ended.code, 0) << ended.said;
  return json::parse(testing::read_bytes(folder / "out.json"));
}

const json& row_of(const json& report, const std::string& mode) {
  for (const json& row : report.at("modes")) {
    if (row.at("mode") == mode) return row;
  }
  throw std::runtime_error("no mode " + mode);
}

void expect_mixed(const json& report, const std::string& dtype) {
  EXPECT_EQ(report.at("dtype"), dtype);
  EXPECT_EQ(report.at("parameter_bytes"), 2 * report.at("parameters").get<std::int64_t>());
  const double copy = report.at("parameter_bytes").get<double>() / (1 << 20);
  for (const json& row : report.at("modes")) {
    EXPECT_EQ(row.at("identical_to_ddp"), true) << row.at("mode");
    EXPECT_LT(std::abs(row.at("formula_difference").get<double>()), 1e-3) << row.at("mode");
  }
  const json& ddp = row_of(report, "ddp");
  EXPECT_NEAR(ddp.at("parameter_mib"), copy, 1e-6);
  EXPECT_NEAR(ddp.at("gradient_mib"), copy, 1e-6);
  EXPECT_NEAR(ddp.at("optimizer_mib"), 6 * copy, 1e-6) << "master weights and moments, 12 bytes";
  // One part in a hundred is for padding.
  EXPECT_NEAR(row_of(report, "tensor_zero1").at("ratio"), 0.625, 0.00625);
  EXPECT_NEAR(row_of(report, "tensor_zero2").at("ratio"), 0.5625, 0.005625);
  EXPECT_NEAR(row_of(report, "tensor_zero3").at("ratio"), 0.5, 0.005);
}

TEST(LadderMixedPrecision, Bfloat16EndsAlikeInEveryModeWithTwelveBytesOfOptimizer) {
  const TestFolder folder;
  const json report = report_of(folder, "--dtype bf16");
  expect_mixed(report, "bf16");
  EXPECT_EQ(report.at("reduce_dtype"), "parameter");
}

TEST(LadderMixedPrecision, Float16HasALossScale) {
  const TestFolder folder;
  const json report = report_of(folder, "--dtype fp16");
  expect_mixed(report, "fp16");
  const json& ddp = row_of(report, "ddp");
  for (const json& row : report.at("modes")) {
    EXPECT_GE(row.at("loss_scale"), 1);
    EXPECT_EQ(row.at("loss_scale"), ddp.at("loss_scale")) << row.at("mode");
    EXPECT_EQ(row.at("skipped_steps"), ddp.at("skipped_steps")) << row.at("mode");
    // Printed without the scale: about the logarithm of the 256 bytes.
    EXPECT_NEAR(row.at("losses").at(0), 5.5, 0.3);
  }
}

TEST(LadderMixedPrecision, ReducingInFloat32DoublesTheGradientsOnTheWireAndNothingElse) {
  const TestFolder folder;
  const json own = report_of(folder, "--dtype bf16");
  const json wide = report_of(folder, "--dtype bf16 --reduce-dtype fp32");
  EXPECT_EQ(wide.at("reduce_dtype"), "fp32");
  for (const json& row : own.at("modes")) {
    const json& other = row_of(wide, row.at("mode"));
    EXPECT_EQ(other.at("sent_gradient_bytes"), 2 * row.at("sent_gradient_bytes").get<double>());
    EXPECT_EQ(other.at("sent_parameter_bytes"), row.at("sent_parameter_bytes"));
    EXPECT_EQ(other.at("ranks").at(0).at("digest"), row.at("ranks").at(0).at("digest"));
  }
}

TEST(LadderMixedPrecision, UnknownTypesAreNamed) {
  const TestFolder folder;
  const ProcessResult dtype = run_ladder(folder, kQuick + "--dtype bf61");
  EXPECT_NE(dtype.code, 0);
  EXPECT_THAT(dtype.said, HasSubstr("unknown dtype 'bf61'"));
  const ProcessResult reduce = run_ladder(folder, kQuick + "--dtype bf16 --reduce-dtype fp23");
  EXPECT_NE(reduce.code, 0);
  EXPECT_THAT(reduce.said, HasSubstr("unknown reduce-dtype 'fp23'"));
}

}  // namespace
}  // namespace zero::ladder
