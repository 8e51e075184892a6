// The ladder program as one rank of a fake process group: beside the same rank of a real one.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include <tests/support/ladder_program.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::figures_of;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::TestFolder;

// tests/fake_process_group compares every mode with real ranks. Here: rank 300 and not rank 0, and
// held what the formulas say, to the last byte.
TEST(FakeProcessGroup, ARankOf512HoldsWhatTheFormulasSay) {
  const TestFolder folder;
  // Of its own: 16 equal tokens in a row, as a rule of a table has, train no query.
  std::mt19937 letters(1);
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 20'000; ++i) text << static_cast<char>('a' + letters() % 26);
  text.close();
  const auto [said, report] = testing::succeed(
      folder, kQuick + "--data " + (folder / "text.txt").string() + " " +
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

}  // namespace
}  // namespace zero::ladder
