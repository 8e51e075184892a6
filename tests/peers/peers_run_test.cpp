// ./run peers: our modes and PyTorch's train the same model on the same batches.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include <tests/support/python.hpp>
#include <tests/support/test_folder.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

class Peers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!python_has({"torch", "transformers", "safetensors"})) {
      GTEST_SKIP() << python() << " lacks torch or transformers (./run test installs them)";
    }
  }
};

ProcessResult run_peers(const TestFolder& folder, const std::string& arguments) {
  return run_python("tools/peers/peers.py --others 100 --ladder '" ZERO_LADDER_PROGRAM
                    "' --json '" +
                    (folder / "peers.json").string() + "' " + arguments);
}

TEST_F(Peers, TrainTheSameModelOnTheSameBatches) {
  const TestFolder folder;
  const ProcessResult run = run_peers(folder, "--model tiny --rounds 1 --steps 3");
  ASSERT_EQ(run.code, 0) << run.said;
  EXPECT_THAT(run.said, HasSubstr("Medians of 1 round; large blocks on huge pages, on both sides"));
  const auto json = nlohmann::json::parse(std::ifstream(folder / "peers.json"));
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["parameters"], 108864);
  for (const auto& row : json["rows"]) {
    SCOPED_TRACE(row["pair"].get<std::string>());
    EXPECT_EQ(row["world_size"], 2);
    EXPECT_GT(row["ours"]["compute_s"], 0.0);
    for (const char* side : {"ours", "torch"}) {
      EXPECT_GT(row[side]["step_s"], 0.0);
      EXPECT_GT(row[side]["hwm_mib"], 10.0);
    }
    // Three steps of 5e-5 move a norm's weight, which is 1, by 1.5e-4: the same way on both sides.
    // A gradient near 0 leaves a part of that to rounding, which text and so which documents
    // decide.
    EXPECT_LT(row["max_rel_diff"], 5e-5);
    // Not one and the same file compared with itself.
    EXPECT_GT(row["max_rel_diff"], 0.0);
  }
}

TEST_F(Peers, NoticeThatTheTwoSidesTrainSomethingElse) {
  const TestFolder folder;
  // With another seed our batches come in another order.
  const ProcessResult run =
      run_peers(folder, "--model tiny --rounds 1 --steps 2 --pairs ddp --seed-of-ours 7");
  EXPECT_NE(run.code, 0);
  EXPECT_THAT(run.said, HasSubstr("do not train the same model on the same batches"));
  EXPECT_FALSE(std::filesystem::exists(folder / "peers.json"));
}

TEST_F(Peers, RefuseWhatIsNotThere) {
  const TestFolder folder;
  const ProcessResult pair = run_peers(folder, "--pairs zero4");
  EXPECT_EQ(pair.code, 2);
  EXPECT_THAT(pair.said, HasSubstr("'zero4' is no pair; there are: ddp, zero1, zero2, zero3"));
  const ProcessResult text = run_peers(folder, "--model tiny --pairs ddp --steps 100000");
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.said, HasSubstr("take fewer --steps"));
  EXPECT_THAT(text.said, ::testing::Not(HasSubstr("Traceback")));
}

}  // namespace
}  // namespace zero::testing
