#include <gtest/gtest.h>

#include <string>
#include <vector>
#include <zero/report/names.hpp>

namespace zero::report {
namespace {

const std::vector<std::string> kModes = {"ddp", "zero1", "zero1:naive", "zero2", "zero3"};
const std::vector<std::string> kModels = {"smollm2-135m", "smollm2-360m", "tiny", "mlp"};

TEST(NearestName, FindsTypingErrors) {
  EXPECT_EQ(nearest_name("zer1", kModes), "zero1");      // a letter left out
  EXPECT_EQ(nearest_name("zeroo3", kModes), "zero3");    // one too many
  EXPECT_EQ(nearest_name("pdd", kModes), std::nullopt);  // two of three letters wrong
  EXPECT_EQ(nearest_name("dpd", kModes), "ddp");         // two swapped
  EXPECT_EQ(nearest_name("zero1:naiv", kModes), "zero1:naive");
  EXPECT_EQ(nearest_name("smolm2-306m", kModels), "smollm2-360m");
}

TEST(NearestName, IgnoresCase) {
  EXPECT_EQ(nearest_name("DDP", kModes), "ddp");
  EXPECT_EQ(nearest_name("ZeRO3", kModes), "zero3");
}

TEST(NearestName, CompletesABeginningWithTheShortestName) {
  EXPECT_EQ(nearest_name("smollm2", kModels), "smollm2-135m");
  EXPECT_EQ(nearest_name("zero1:", kModes), "zero1:naive");
  EXPECT_EQ(nearest_name("s", kModels), std::nullopt);
}

TEST(NearestName, PrefersTheExactNameToALongerOne) {
  const std::vector<std::string> known = {"zero1:naive", "zero1"};
  EXPECT_EQ(nearest_name("ZERO1", known), "zero1");
}

TEST(NearestName, TakesTheFirstOfEquallyNearNames) {
  EXPECT_EQ(nearest_name("zero4", kModes), "zero1");
}

TEST(NearestName, DoesNotGuessWildly) {
  EXPECT_EQ(nearest_name("banana", kModes), std::nullopt);
  EXPECT_EQ(nearest_name("", kModes), std::nullopt);
  EXPECT_EQ(nearest_name("zero1", {}), std::nullopt);
}

TEST(UnknownNameMessage, NamesTheNearestAndAllKnown) {
  EXPECT_EQ(unknown_name_message("mode", "zer1", kModes),
            "unknown mode 'zer1'; did you mean 'zero1'? "
            "known modes: ddp, zero1, zero1:naive, zero2, zero3");
  EXPECT_EQ(unknown_name_message("model", "bert", kModels),
            "unknown model 'bert'; known models: smollm2-135m, smollm2-360m, tiny, mlp");
  const std::vector<std::string> one = {"ddp"};
  EXPECT_EQ(unknown_name_message("strategy", "x", one),
            "unknown strategy 'x'; known strategies: ddp");
}

}  // namespace
}  // namespace zero::report
