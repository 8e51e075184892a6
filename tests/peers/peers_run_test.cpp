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

// Of both sides in copies of the parameters, means over two ranks: 1 + 1 + 2 where nothing is
// sharded.
void expect_model_states(const nlohmann::json& row) {
  constexpr double kCopyMib = 108864.0 * 4 / (1 << 20);
  const std::string pair = row["pair"];
  const bool fully = pair == "zero2" || pair == "zero3";  // under PyTorch both are FSDP2
  const double gradients = pair == "ddp" || pair == "zero1" ? 1 : 0.5;
  const double moments = pair == "ddp" ? 2 : 1;
  const auto expect = [&](const char* side, const char* key, double copies, double more) {
    const double mib = row.at(side).at(key);
    EXPECT_GE(mib, copies * kCopyMib - 1e-9) << side << key;
    EXPECT_LE(mib, copies * kCopyMib + more) << side << key;
  };
  // Chapter 05 pads its buffers, by less than 64 elements each; PyTorch has a step count of 4 bytes
  // for each of 21 parameters.
  constexpr double kPaddingMib = 4 * 64.0 * 4 / (1 << 20);
  constexpr double kCountsMib = 21 * 4.0 / (1 << 20);
  expect("ours", "parameter_mib", pair == "zero3" ? 0.5 : 1, kPaddingMib);
  expect("ours", "gradient_mib", gradients, kPaddingMib);
  expect("ours", "optimizer_mib", moments, kPaddingMib);
  expect("torch", "parameter_mib", fully ? 0.5 : 1, 1e-9);
  expect("torch", "gradient_mib", gradients, 1e-9);
  expect("torch", "optimizer_mib", moments, kCountsMib + 1e-9);
}

TEST_F(Peers, TrainTheSameModelOnTheSameBatches) {
  const TestFolder folder;
  const ProcessResult run = run_peers(folder, "--model tiny --rounds 1 --steps 3");
  ASSERT_EQ(run.code, 0) << run.said;
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
    expect_model_states(row);
    // Three steps of 5e-5 move a norm's weight, which is 1, by 1.5e-4: the same way on both sides.
    // A gradient near 0 leaves a part of that to rounding, which text and so which documents
    // decide.
    EXPECT_LT(row["max_rel_diff"], 5e-5);
    // Not one and the same file compared with itself.
    EXPECT_GT(row["max_rel_diff"], 0.0);
  }
}

TEST_F(Peers, SayWhereTimeAndMemoryGoOnBothSides) {
  const TestFolder folder;
  const ProcessResult run = run_peers(folder, "--model tiny --rounds 1 --steps 3 --pairs ddp");
  ASSERT_EQ(run.code, 0) << run.said;
  EXPECT_THAT(run.said, HasSubstr("Medians of 1 round; large blocks on huge pages, on both sides"));
  const auto json = nlohmann::json::parse(std::ifstream(folder / "peers.json"));
  const auto& row = json["rows"][0];
  constexpr double kCopyMib = 108864.0 * 4 / (1 << 20);
  for (const std::string side : {"ours", "torch"}) {
    SCOPED_TRACE(side);
    const auto of = [&](const char* key) { return row.at(side).at(key).get<double>(); };
    EXPECT_LT(of("forward_s") + of("backward_s") + of("optimizer_s"), 1.5 * of("step_s"));
    EXPECT_GT(of("backward_s"), 0.0);
    // Parameters, gradients and two moments; activations are a part of the rest.
    EXPECT_GT(of("peak_mib"), 4 * kCopyMib);
    EXPECT_LT(of("peak_mib"), 20 * kCopyMib);
    EXPECT_GE(of("rest_mib"), 4 * kCopyMib - 0.01);
    // An all-reduce of two ranks sends a copy; headers and acknowledgements are the rest.
    EXPECT_GE(of("sent_bytes"), kCopyMib * (1 << 20));
    EXPECT_LT(of("sent_bytes"), 2 * kCopyMib * (1 << 20));
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
