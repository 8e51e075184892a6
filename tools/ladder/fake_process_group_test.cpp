// The ladder program as one rank of a fake process group: beside the same rank of a real one, and
// what it refuses.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::expect_all_refused;
using testing::figures_of;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::TestFolder;

// tests/fake_process_group compares every mode with real ranks. Here: rank 300 and not rank 0, and
// held what the formulas say, to the last byte.
TEST(FakeProcessGroup, ARankOf512HoldsWhatTheFormulasSay) {
  const TestFolder folder;
  const auto [said, report] = testing::succeed(
      folder, kQuick +
                  "--fake-process-group 512 --rank 300 --modes ddp,zero2:placeholder,zero3,"
                  "tensor_zero3");
  EXPECT_THAT(said, AllOf(HasSubstr("rank 300 of 512 in a fake"), HasSubstr("compared (n/a)")));
  EXPECT_EQ(report.at("fake_process_group"), (json{{"size", 512}, {"rank", 300}}));
  EXPECT_EQ(report.at("modes").size(), 4U);
  for (const json& row : report.at("modes")) {
    const json& held = row.at("ranks").at(0);
    EXPECT_EQ(held.at("rank"), 300);
    EXPECT_EQ(held.at("total_mib").get<double>() - held.at("other_mib").get<double>(),
              row.at("formula_mib").get<double>())
        << row;
    EXPECT_TRUE(row.at("digest").is_null());
  }
  // 1/512 of a layer and of the root are 90 and 32 elements, which padding makes 128 and 64.
  EXPECT_EQ(report.at("modes").back().at("parameter_mib"), (2 * 128 + 64) * 4 / 1048576.0);
}

// In groups of 8, a rank of 512 holds what one of 8 does, by number and by host.
TEST(FakeProcessGroup, ARankOfAGroupHoldsAndSendsWhatTheFormulasSay) {
  const TestFolder folder;
  const std::string rank = kQuick + "--fake-process-group 512 --rank 300 ";
  const json by_number =
      figures_of(folder, rank + "--modes ddp,hsdp1,hsdp2,hsdp3 --shard-size 8").at("modes");
  const json by_host = figures_of(folder, rank + "--modes hsdp3 --ranks-per-host 8").at("modes");
  const json of_eight =
      figures_of(folder, kQuick + "--fake-process-group 8 --rank 4 --modes engine3").at("modes");
  ASSERT_EQ(by_number.size(), 4U);
  const json& groups = by_number.back().at("ranks").at(0);
  EXPECT_EQ(by_number.back().at("mode"), "hsdp3:shard_size=8");
  for (const char* kind : {"parameter_mib", "gradient_mib", "optimizer_mib"}) {
    EXPECT_EQ(groups.at(kind), by_host.at(0).at("ranks").at(0).at(kind)) << kind;
    EXPECT_EQ(groups.at(kind), of_eight.at(0).at("ranks").at(0).at(kind)) << kind;
  }
}

// What a rank holds, and what it sends along each axis in a step.
json held_and_sent(const json& rank) {
  json seen;
  for (const char* figure :
       {"parameter_mib", "gradient_mib", "optimizer_mib", "sent_gradient_bytes",
        "sent_parameter_bytes", "sent_pipeline_bytes", "sent_tensor_bytes"}) {
    seen[figure] = rank.at(figure);
  }
  return seen;
}

// Rank 1 of 4 is not at the place of rank 2 on any two axes.
TEST(FakeProcessGroup, ARankOfAMeshHoldsAndSendsWhatItDoesAmongRealRanks) {
  const TestFolder folder;
  for (const std::string mesh :
       {"--modes zero3,engine3,hsdp3 --tp 2", "--modes engine3 --tp 2 --sequence-parallel",
        "--modes zero2 --pp 2 --micro-batches 3", "--modes zero1 --tp 2 --pp 2"}) {
    SCOPED_TRACE(mesh);
    const json real = figures_of(folder, kQuick + "--nproc 4 " + mesh);
    for (const std::size_t rank : {1, 2}) {
      const auto [said, fake] = testing::succeed(
          folder, fmt::format("{}--fake-process-group 4 --rank {} {}", kQuick, rank, mesh));
      EXPECT_THAT(said, HasSubstr(" of 4 in a fake process group (data "));
      EXPECT_EQ(fake.at("mesh"), real.at("mesh"));
      for (std::size_t m = 0; m < real.at("modes").size(); ++m) {
        EXPECT_EQ(held_and_sent(fake.at("modes").at(m).at("ranks").at(0)),
                  held_and_sent(real.at("modes").at(m).at("ranks").at(rank)))
            << "rank " << rank << ", " << real.at("modes").at(m).at("mode");
      }
    }
  }
}

TEST(FakeProcessGroup, RefusesBadArgumentsBeforeAnythingIsWritten) {
  expect_all_refused(
      kQuick,
      {
          {"--rank 3", {"--rank requires --fake-process-group"}},
          {"--fake-process-group 512 --rank 512", {"no rank 512 in a world of 512"}},
          {"--fake-process-group 6 --ranks-per-host 4",
           {"world of 6 ranks cannot fill hosts of 4"}},
          {"--fake-process-group 4 --rank -1", {"--rank", "-1 not in range"}},
          {"--fake-process-group 0", {"--fake-process-group", "Value 0 not in range"}},
          {"--fake-process-group 4097", {"--fake-process-group", "4097 not in range"}},
          {"--fake-process-group 6 --tp 2 --pp 2",
           {"6 ranks", "no multiple of 4", "take --fake-process-group 8"}},
          {"--fake-process-group 1 --tp 2", {"1 ranks", "take --fake-process-group 2"}},
          {"--fake-process-group 4 --nproc 2", {"--nproc excludes --fake-process-group"}},
          {"--fake-process-group 4 --ranks-per-host 2 --link 1gbit",
           {"--link excludes --fake-process-group"}},
          {"--fake-process-group 4 --save x", {"--save excludes --fake-process-group"}},
          {"--fake-process-group 4 --memory-timeline x",
           {"--memory-timeline excludes --fake-process-group"}},
          {"--fake-process-group 4 --modes ddp --checkpoint x",
           {"--checkpoint excludes --fake-process-group"}},
          {"--fake-process-group 4 --resume x", {"--resume excludes --fake-process-group"}},
          {"--fake-process-group 4 --validation 0.1",
           {"--validation excludes --fake-process-group"}},
          {"--fake-process-group 4 --modes zero4", {"unknown mode 'zero4'"}},
          {"--fake-process-group 4096 --batch 4096", {"one step over all ranks takes 16777216"}},
      });
  expect_all_refused(
      "--seq-len 16 ",
      {
          {"--fake-process-group 4 --epochs 1", {"--epochs excludes --fake-process-group"}},
          {"--fake-process-group 32 --rank 31 --model llama-1.5b --modes tensor_zero3,ddp "
           "--assume-free-memory 4096",
           {"llama-1.5b", "rank 31 of 32 needs about", "4.0 GiB are free",
            "modes that shard more"}},
      });
}

// What one rank needs is far less than what 512 would. The tiny model has 1.66 MiB of model states
// and needs about 301.35 MiB besides, so that 302 are enough for an eighth of them and not for
// half.
TEST(FakeProcessGroup, OnlyItsOneRankMustFitWithTheStatesOfItsGroup) {
  const TestFolder folder;
  const std::string little = kQuick + "--fake-process-group 512 --assume-free-memory 302 --modes ";
  figures_of(folder, little + "tensor_zero3");
  figures_of(folder, little + "hsdp3 --shard-size 8");
  expect_all_refused(little, {{"hsdp3 --shard-size 2", {"tiny", "rank 0 of 512 needs about"}},
                              {"hsdp3:shard_size=2", {"tiny", "rank 0 of 512 needs about"}},
                              {"hsdp3 --ranks-per-host 2", {"a group: --shard-size"}}});
  // With 8 tensor ranks, a host of 64 has a group of 8 data ranks, and one of 8 has a single one.
  // An eighth of llama-20m has 37 MiB of model states. What is refused for --seq-len has fitted.
  const std::string mesh =
      "--model llama-20m --tp 8 --steps 1 --seq-len 15 --sequence-parallel --fake-process-group "
      "512 "
      "--assume-free-memory 330 --modes hsdp3 --ranks-per-host ";
  expect_all_refused(
      mesh, {{"64", {"multiple of 8, not 15"}}, {"8", {"llama-20m", "rank 0 of 512 needs about"}}});
}

}  // namespace
}  // namespace zero::ladder
