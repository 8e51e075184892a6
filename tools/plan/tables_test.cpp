// What is printed, number by number; the formulas behind have tests of their own.
#include "tables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "alternatives.hpp"
#include "quantity.hpp"
#include "whole_parameters.hpp"

namespace zero::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Rows = std::vector<const char*>;

void expect_rows(const NamedTable& table, const Rows& rows) {
  SCOPED_TRACE(table.title);
  const std::string text = table.table.to_markdown();
  for (const char* row : rows) EXPECT_THAT(text, HasSubstr(row));
  EXPECT_EQ(table.table.rows(), rows.size());
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

struct PublishedMode {
  Stage stage;
  double model, grad, optimizer, total, ratio;
};

// As published, means over two ranks to two decimals: columns within 0.01, sums within 0.02.
TEST(LadderTables, TheClassifierIsAsPublished) {
  constexpr std::int64_t kParameters = 361'825'920;
  for (const PublishedMode& row :
       {PublishedMode{Stage::kDdp, 1380.26, 1380.26, 2760.51, 5521.03, 1},
        PublishedMode{Stage::kZero1, 1380.26, 1380.26, 1380.26, 4140.78, .75},
        PublishedMode{Stage::kZero2, 1380.26, 690.12, 1380.26, 3450.65, .625},
        PublishedMode{Stage::kZero3, 690.12, 690.12, 1380.26, 2760.51, .5}}) {
    SCOPED_TRACE(name(row.stage));
    const States states = model_states(kParameters, fp32(), row.stage, 2);
    EXPECT_NEAR(mib(states.parameters), row.model, 0.01);
    EXPECT_NEAR(mib(states.gradients), row.grad, 0.01);
    EXPECT_NEAR(mib(states.optimizer), row.optimizer, 0.01);
    EXPECT_NEAR(mib(states.total()), row.total, 0.02);
    EXPECT_DOUBLE_EQ(ratio_to_ddp(fp32(), row.stage, 2), row.ratio);
  }
  nn::LlamaConfig config = nn::preset("smollm2-360m");
  config.classes = 5;
  const std::int64_t fsdp = elements_sharded_by_rows(llama_tensors(config), 2);
  EXPECT_EQ(fsdp, kParameters / 2 + 480);
  EXPECT_NEAR(mib(4 * fsdp), 690.13, 0.005);
  EXPECT_NEAR(mib(16 * fsdp), 2760.52, 0.005);
}

TEST(LadderTables, Printed) {
  const std::vector<NamedTable> tables = ladder_tables();
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_THAT(tables[0].title, HasSubstr("361,825,920 parameters in 291 tensors"));
  expect_rows(tables[0], {"| DDP | 1380.26 | 1380.26 | 2760.51 | 5521.03 | 1.000 |",
                          "| ZeRO-1 | 1380.26 | 1380.26 | 1380.26 | 4140.77 | 0.750 |",
                          "| ZeRO-2 | 1380.26 | 690.13 | 1380.26 | 3450.64 | 0.625 |",
                          "| ZeRO-3 | 690.13 | 690.13 | 1380.26 | 2760.51 | 0.500 |",
                          "| FSDP2 at rest | 690.13 | 690.13 | 1380.26 | 2760.52 | 0.500 |"});
  EXPECT_THAT(tables[1].title, HasSubstr("361,821,120 parameters in 290 tensors"));
  expect_rows(tables[1], {"| DDP | 1380.24 | 1380.24 | 2760.48 | 5520.95 | 1.000 |",
                          "| ZeRO-1 | 1380.24 | 1380.24 | 1380.24 | 4140.71 | 0.750 |",
                          "| ZeRO-2 | 1380.24 | 690.12 | 1380.24 | 3450.60 | 0.625 |",
                          "| ZeRO-3 | 690.12 | 690.12 | 1380.24 | 2760.48 | 0.500 |"});
  expect_rows(tables[2], {"| by count | 1.1304 | 1.3912 | 1.9129 | 2.9562 |",
                          "| by size | 1.0002 | 1.0019 | 1.0433 | 2.0866 |"});
  EXPECT_THAT(tables[2].notes, Contains(HasSubstr("4320.7 / 3720.6 / 3120.5 MiB")));
  EXPECT_THAT(tables[2].notes, Contains(HasSubstr("47,185,920 of 361,821,120")));
  EXPECT_THAT(tables[2].notes, Contains(HasSubstr("9,832,320")));
}

TEST(ModelStateTables, Printed) {
  const std::vector<NamedTable> tables = model_state_tables();
  ASSERT_EQ(tables.size(), 9U);
  expect_rows(tables[0],
              {"| DDP | 16 P | 16.00 P | 16.00 P | 16 P | 16 P |",
               "| ZeRO-1 | 4 P + 12 P/N | 5.50 P, -65.6 % | 4.19 P, -73.8 % | 4 P | 8 P + 8 P/N |",
               "| ZeRO-2 | 2 P + 14 P/N | 3.75 P, -76.6 % | 2.22 P, -86.1 % | 2 P | 4 P + 12 P/N |",
               "| ZeRO-3 | 16 P/N | 2.00 P, -87.5 % | 0.25 P, -98.4 % | 0 P | 16 P/N |"});
  expect_rows(tables[1],
              {"| 2 | 0.750000 | 0.625000 | 0.500000 | 0.625000 | 0.562500 | 0.500000 |",
               "| 4 | 0.625000 | 0.437500 | 0.250000 | 0.437500 | 0.343750 | 0.250000 |",
               "| 8 | 0.562500 | 0.343750 | 0.125000 | 0.343750 | 0.234375 | 0.125000 |"});
  expect_rows(tables[2], {"| ZeRO-1 | 2.3 | 2.9 | 3.8 |", "| ZeRO-2 | 2.9 | 4.3 | 7.2 |",
                          "| ZeRO-3 | 4.0 | 8.0 | 64.0 |"});
  EXPECT_THAT(tables[2].notes, Contains(HasSubstr("1024 copies: 99.9 %")));
  expect_rows(tables[3],
              {"| 1 | 22.35 | 22.35 | 22.35 | 22.35 |", "| 2 | 22.35 | 13.97 | 12.57 | 11.18 |",
               "| 8 | 22.35 | 7.68 | 5.24 | 2.79 |", "| 32 | 22.35 | 6.11 | 3.41 | 0.70 |",
               "| 128 | 22.35 | 5.72 | 2.95 | 0.17 |", "| 512 | 22.35 | 5.62 | 2.83 | 0.04 |"});
  expect_rows(tables[4], {"| 4 | 112.0000 | 49.0000 | 38.5000 | 28.0000 |",
                          "| 8 | 112.0000 | 38.5000 | 26.2500 | 14.0000 |",
                          "| 64 | 112.0000 | 29.3125 | 15.5312 | 1.7500 |",
                          "| 256 | 112.0000 | 28.3281 | 14.3828 | 0.4375 |"});
  expect_rows(tables[5], {"| 8 | 112.0 | 63.0 | 38.5 | 14.0 |"});
  expect_rows(tables[6],
              {"| 8 | 208.00 | 71.50 | 48.75 | 26.00 |", "| 32 | 208.00 | 56.88 | 31.69 | 6.50 |"});
  expect_rows(tables[7], {"| 1 | 5.59 | 6.00 | no | no |", "| 2 | 2.79 | 3.00 | no | no |",
                          "| 4 | 1.40 | 1.50 | no | no |", "| 5 | 1.12 | 1.20 | no | no |",
                          "| 6 | 0.93 | 1.00 | yes | no |", "| 7 | 0.80 | 0.86 | yes | yes |",
                          "| 8 | 0.70 | 0.75 | yes | yes |"});
  expect_rows(tables[8], {"| model states, ZeRO-3, 64 ranks | 1.75 | 1.63 |",
                          "| activations, everything kept | 34.36 | 32.00 |",
                          "| activations, layers recomputed | 3.22 | 3.00 |"});
}

TEST(CommunicationTables, Printed) {
  const std::vector<NamedTable> tables = communication_tables();
  ASSERT_EQ(tables.size(), 2U);
  expect_rows(tables[0],
              {"| DDP | 2 V (N-1)/N | 1.000 | 1.500 | 1.750 |",
               "| ZeRO-1 naive | 3 V (N-1)/N | 1.500 | 2.250 | 2.625 | 2 V (N-1)/N + (N-1) o |",
               "| ZeRO-1 | 2 V (N-1)/N | 1.000 | 1.500 | 1.750 | V + (N-2) o |",
               "| ZeRO-2 | 2 V (N-1)/N | 1.000 | 1.500 | 1.750 | V + (N-2) o |",
               "| ZeRO-2 placeholder | (N-1) V + V (N-1)/N | 1.500 | 3.750 | 7.875 |",
               "| ZeRO-3 | 3 V (N-1)/N | 1.500 | 2.250 | 2.625 | V - o + (N-1) (2 o - o_kept) |",
               "| ZeRO-3 kept | 2 V (N-1)/N | 1.000 | 1.500 | 1.750 |"});
  EXPECT_THAT(tables[0].notes, Contains(HasSubstr("1.435 V at N = 2")));
  expect_rows(tables[1], {"| DDP | 5.59 | 2.79 | 2.79 |", "| ZeRO-1 | 5.59 | 2.79 | 2.79 |",
                          "| ZeRO-2 | 5.59 | 2.79 | 2.79 |", "| ZeRO-3 | 8.38 | 2.79 | 5.59 |"});
}

TEST(ChoosingTables, Printed) {
  const std::vector<NamedTable> tables = choosing_tables();
  ASSERT_EQ(tables.size(), 6U);
  expect_rows(tables[0], {"| DDP | 8 | 208.00 | no |", "| ZeRO-1 | 8 | 71.50 | no |",
                          "| ZeRO-2 | 8 | 48.75 | no |", "| ZeRO-3 | 8 | 26.00 | no |",
                          "| ZeRO-3 + offload | 8 | 6.50 | yes |", "| ZeRO-3 | 9 | 23.11 | yes |",
                          "| ZeRO-3 | 12 | 17.33 | yes |", "| ZeRO-3 | 16 | 13.00 | yes |"});
  EXPECT_THAT(tables[0].notes, Contains(HasSubstr("needs 9 ranks")));
  expect_rows(tables[1], {"| DDP | 24.00 | never |", "| ZeRO-1 | 6.00 | 2 ranks |",
                          "| ZeRO-2 | 3.00 | 2 ranks |", "| ZeRO-3 | 0.00 | 2 ranks |"});
  expect_rows(tables[2], {"| 25 | 16 | 2 | 202 |", "| 50 | 8 | 1 | 8 |", "| 100 | 4 | 1 | 4 |",
                          "| 200 | 2 | 1 | 2 |"});
  expect_rows(tables[3],
              {"| 7 B | 421 | 15 | 4 |", "| 13 B | 781 | 15 | 4 |", "| 70 B | 4201 | 15 | 4 |"});
  expect_rows(tables[4],
              {"| all ZeRO-3 | 14.00 | 42.00 |", "| 6 B ZeRO-3, 1 B ZeRO-2 | 15.75 | 40.00 |",
               "| all ZeRO-2 | 26.25 | 28.00 |"});
  EXPECT_THAT(tables[4].notes, Contains(HasSubstr("1.5 times")));
  expect_rows(tables[5], {"| 1024 | 12,582,912 | 4,609 | 0.066 | 0.117 |",
                          "| 4096 | 201,326,592 | 18,433 | 1.057 | 0.470 |",
                          "| 8192 | 805,306,368 | 36,865 | 4.228 | 0.940 |"});
}

TEST(TablesText, HasAllChapters) {
  const std::string text = tables_text();
  for (const char* title : {"1. The ladder\n", "2. Model states\n", "3. Communication\n",
                            "4. Choosing and hiding\n", "5. Where sources contradict"}) {
    EXPECT_THAT(text, HasSubstr(title));
  }
  EXPECT_THAT(text, HasSubstr("MiB = 2^20, GiB = 2^30, GB = 10^9 bytes."));
}

// ---- where sources contradict themselves
// ---------------------------------------------------------

struct Erratum {
  const char* said;
  const char* follows;
};

void PrintTo(const Erratum& erratum, std::ostream* out) { *out << erratum.said; }

class Contradictions : public ::testing::TestWithParam<Erratum> {};

TEST_P(Contradictions, FollowsFromTheFormula) {
  int found = 0;
  for (const Contradiction& c : contradictions()) {
    if (c.said.find(GetParam().said) == std::string::npos) continue;
    ++found;
    EXPECT_THAT(c.follows, HasSubstr(GetParam().follows));
  }
  EXPECT_EQ(found, 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, Contradictions,
    ::testing::Values(
        Erratum{"30.6 and 28.2 GB", "29.3, 28.3, 15.5 GB"},
        Erratum{"Adam states 56 GB", "84 GB with master weights, 56 without"},
        Erratum{"break-even batch 15, 8, 2", "15, 15, 15"},
        Erratum{"hybrid", "4 P with the parameters' all-gather, a saving of 1.5"},
        Erratum{"ZeRO-2 sends about twice", "2 V (N-1)/N and 2 V (N-1)/N: the same"},
        Erratum{"13 B fits eight cards", "26.00 GB of model states: it does not"},
        Erratum{"ZeRO-1 drawn", "3 V (N-1)/N; with a reduce-scatter in its place 2 V (N-1)/N"},
        Erratum{"default to ZeRO-1", "2 V (N-1)/N as DDP: it is free; so is ZeRO-2 (2 V (N-1)/N)"},
        Erratum{"FSDP2 without reshard",
                "sharded at rest (1.75 GB of 7 B, 8 ranks), whole from forward to backward (14.00"},
        Erratum{"ZeRO-R", "saves 0 % in data parallelism"},
        Erratum{"zero out", "kept 14.00 GB, zeroed 14.00 GB, freed 1.75 GB"}));

TEST(ContradictionsList, IsWhole) { EXPECT_EQ(contradictions().size(), 11U); }

}  // namespace
}  // namespace zero::plan
