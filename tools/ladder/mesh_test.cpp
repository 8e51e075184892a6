// The ladder on a mesh of ranks: parts of layers on a tensor axis, layers on stages of a pipeline,
// and every mode on the data axis. The program itself compares bytes with formulas.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <tests/support/ladder_program.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::figures_of;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::row_of;
using testing::TestFolder;

// One sample of 16 tokens between two layers of the tiny model, in bytes.
constexpr std::int64_t kActivations = 16 * 64 * 4;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kEmbedding = 256 * 64;

// The digest of all ranks, which must be the same.
std::string digest_in(const json& report, const std::string& mode = "ddp") {
  return row_of(report, mode).at("digest");
}

void expect_all_identical(const json& report, std::size_t modes, std::size_t ranks) {
  EXPECT_EQ(report.at("modes").size(), modes);
  for (const json& row : report.at("modes")) {
    EXPECT_EQ(row.at("identical_to_ddp"), true) << row;
    EXPECT_EQ(row.at("ranks").size(), ranks);
    for (const json& rank : row.at("ranks")) EXPECT_EQ(rank.at("digest"), row.at("digest"));
  }
}

std::int64_t sent_by(const json& report, const std::string& axis, std::size_t rank,
                     const std::string& mode = "ddp") {
  return row_of(report, mode).at("ranks").at(rank).at("sent_" + axis + "_bytes");
}

TEST(LadderMesh, TensorRanksShareTheModelAndEveryModeIsDdpOfTheSameMesh) {
  const TestFolder folder;
  // tests/mesh_parity_test.cpp has the bits of every mode.
  const std::string modes = "--modes ddp,zero2,zero3,engine3 ";
  const auto [said, report] = testing::succeed(folder, kQuick + modes + "--nproc 4 --tp 2 --wide");
  EXPECT_THAT(said, HasSubstr("on 4 ranks (data 2 x tensor 2), 2 steps of 1 x 16 tokens a rank"));
  EXPECT_THAT(said, HasSubstr("sent: tensor axis"));
  expect_all_identical(report, 4, 4);
  EXPECT_EQ(report.at("mesh"), (json{{"data", 2}, {"pipeline", 1}, {"tensor", 2}}));
  EXPECT_EQ(report.at("micro_batches"), 1);
  const std::int64_t all = tools::preset("tiny").parameters(), norms = (2 * kLayers + 1) * 64;
  EXPECT_EQ(report.at("parameters"), all);
  EXPECT_EQ(report.at("parameter_bytes"), 4 * all);
  const std::int64_t part = 4 * ((all - norms) / 2 + norms);  // bytes
  EXPECT_EQ(row_of(report, "ddp").at("parameter_mib"), static_cast<double>(part) / (1 << 20));
  EXPECT_EQ(row_of(report, "ddp").at("sent_data_bytes"), part);
  for (const json& row : report.at("modes")) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(sent_by(report, "tensor", rank, row.at("mode")),
                (4 * kLayers + 2) * kActivations + 2 * 16 * 4);
      EXPECT_EQ(sent_by(report, "pipeline", rank, row.at("mode")), 0);
    }
  }
  // The two data ranks have the batches of two ranks without a mesh.
  const json whole = figures_of(folder, kQuick + "--modes ddp");
  EXPECT_EQ(whole.at("mesh"), (json{{"data", 2}, {"pipeline", 1}, {"tensor", 1}}));
  for (std::size_t step = 0; step < 2; ++step) {
    EXPECT_NEAR(row_of(report, "ddp").at("losses").at(step),
                row_of(whole, "ddp").at("losses").at(step), 1e-5);
  }
}

TEST(LadderMesh, SequenceParallelismIsTheSameUnderEveryMode) {
  const TestFolder folder;
  const json report =
      figures_of(folder, kQuick + "--modes ddp,zero3 --nproc 4 --tp 2 --sequence-parallel");
  expect_all_identical(report, 2, 4);
  EXPECT_EQ(report.at("sequence_parallel"), true);
  // As many bytes as without, and the gradients of the norms.
  EXPECT_EQ(sent_by(report, "tensor", 0),
            (4 * kLayers + 2) * kActivations + 2 * 16 * 4 + (2 * kLayers + 1) * 64 * 4);
}

TEST(LadderMesh, PartitionedCheckpointsChangeNoBitAndAreGatheredOnce) {
  const TestFolder folder;
  const std::string run = kQuick + "--modes ddp,zero3 --nproc 2 --tp 2 --activation-checkpointing ";
  const json whole = figures_of(folder, run);
  const json parts = figures_of(folder, run + "--partition-activations");
  expect_all_identical(parts, 2, 2);
  EXPECT_EQ(parts.at("partition_activations"), true);
  EXPECT_EQ(digest_in(parts), digest_in(whole));
  EXPECT_EQ(sent_by(parts, "tensor", 0) - sent_by(whole, "tensor", 0), kLayers * kActivations / 2);
}

// The digest is of the whole model, whichever ranks hold it.
TEST(LadderMesh, StagesHaveTheBitsOfTheWholeModel) {
  const TestFolder folder;
  const std::string run = kQuick + "--modes ddp,zero2,engine2 --micro-batches 3 ";
  const json whole = figures_of(folder, run);
  const auto [said, report] = testing::succeed(folder, run + "--nproc 4 --pp 2");
  EXPECT_THAT(said, HasSubstr("4 ranks (data 2 x pipeline 2)"));
  EXPECT_THAT(said, HasSubstr("3 micro-batches of 1 x 16 tokens a rank"));
  expect_all_identical(report, 3, 4);
  EXPECT_EQ(report.at("mesh"), (json{{"data", 2}, {"pipeline", 2}, {"tensor", 1}}));
  EXPECT_EQ(digest_in(report), digest_in(whole));
  EXPECT_EQ(row_of(report, "zero2").at("losses"), row_of(whole, "zero2").at("losses"));
  // Rank = 2 (data rank) + stage. Stage 0 sends its output, and the gradient of the embedding's.
  EXPECT_EQ(sent_by(report, "pipeline", 0), 2 * 3 * kActivations);
  EXPECT_EQ(sent_by(report, "pipeline", 3), 3 * kActivations + kEmbedding * 4);
  EXPECT_EQ(sent_by(report, "tensor", 0), 0);
}

TEST(LadderMesh, StagesTakeAsManyMicroBatchesAsThereAreUnlessTold) {
  const TestFolder folder;
  const json report = figures_of(folder, kQuick + "--modes ddp --pp 2");
  EXPECT_EQ(report.at("micro_batches"), 2);
  EXPECT_EQ(sent_by(report, "pipeline", 0), 2 * 2 * kActivations);
}

// 4 steps in an epoch of the data, which ends where the checkpoint is.
TEST(LadderMesh, ACheckpointOfAPipelineGoesOnWithAnotherNumberOfStages) {
  const TestFolder folder;
  const std::string place = testing::shell_word(folder / "run");
  std::string text;
  for (int i = 0; text.size() <= 16 * 16; ++i) text += std::to_string(i * i) + " ";
  folder.write("text", text.substr(0, 16 * 16 + 1));
  const std::string run = "--model tiny --seq-len 16 --no-compute-alone --timeout 30 --data" +
                          testing::shell_word(folder / "text");
  const std::string engine = run + "--modes engine2 --micro-batches 2 ";
  const json all = figures_of(folder, engine + "--steps 8");
  EXPECT_EQ(row_of(all, "engine2").at("losses").size(), 8u);
  figures_of(folder, engine + "--nproc 4 --pp 2 --steps 4 --checkpoint" + place);
  for (const std::string mesh : {"--nproc 2", "--nproc 4 --pp 2"}) {
    const json rest = figures_of(folder, engine + mesh + " --steps 8 --resume" + place);
    EXPECT_EQ(row_of(rest, "engine2").at("losses").size(), 4u);
    EXPECT_EQ(digest_in(rest, "engine2"), digest_in(all, "engine2")) << mesh;
  }
  // All three axes, with as many samples a step.
  const json other = figures_of(folder, run + "--modes ddp,zero1 --nproc 4 --tp 2 --pp 2 " +
                                            "--micro-batches 4 --steps 8 --resume" + place);
  expect_all_identical(other, 2, 4);
  EXPECT_NEAR(row_of(other, "ddp").at("losses").at(3), row_of(all, "engine2").at("losses").at(7),
              1e-4);
}

}  // namespace
}  // namespace zero::ladder
