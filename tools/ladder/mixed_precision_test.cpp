// The ladder program in 2-byte types: all modes to the same bits, bytes by formula.

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::figures_of;
using testing::kQuick;
using testing::TestFolder;

// Master weights and moments are twelve bytes of optimizer. tests/matrix has the bits of every mode
// in both types of 2 bytes.
TEST(LadderMixedPrecision, EveryModeHasTheBitsOfDdpAndTheBytesOfItsFormula) {
  const TestFolder folder;
  const json report =
      figures_of(folder, kQuick + "--modes ddp,zero2,zero3,tensor_zero3 --dtype bf16");
  EXPECT_EQ(report.at("dtype"), "bf16");
  EXPECT_EQ(report.at("parameter_bytes"), 2 * report.at("parameters").get<std::int64_t>());
  for (const json& row : report.at("modes")) {
    EXPECT_EQ(row.at("identical_to_ddp"), true) << row.at("mode");
    EXPECT_LT(std::abs(row.at("formula_difference").get<double>()), 1e-3) << row.at("mode");
  }
}

}  // namespace
}  // namespace zero::ladder
