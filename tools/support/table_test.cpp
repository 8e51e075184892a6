#include "table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <zero/base/error.hpp>

namespace zero::tools {
namespace {

TEST(Table, AlignsColumnsLeftAndRight) {
  Table table({{"mode", Align::kLeft}, {"total"}, {"ratio"}});
  table.add_row({"ddp", "5520.95", "1.000"}).add_row({"zero1:naive", "4140.71", "0.750"});
  EXPECT_EQ(table.to_text(),
            "mode           total  ratio\n"
            "---------------------------\n"
            "ddp          5520.95  1.000\n"
            "zero1:naive  4140.71  0.750\n");
}

TEST(Table, PrintsUnitsAndGroupsOnlyWhereThereAreAny) {
  Table table({{"mode", Align::kLeft},
               {"mean", Align::kRight, "MiB", "parameters"},
               {"max", Align::kRight, "MiB", "parameters"},
               {"step", Align::kRight, "s"}});
  table.add_row({"zero3", "690.12", "690.31", "4.125"});
  EXPECT_EQ(table.to_text(),
            "        parameters\n"
            "mode     mean    max   step\n"
            "          MiB    MiB      s\n"
            "---------------------------\n"
            "zero3  690.12 690.31  4.125\n");
}

TEST(Table, WidensAColumnForItsUnit) {
  Table table({{"m", Align::kLeft}, {"t", Align::kRight, "MiB/s"}, {"n"}});
  table.add_row({"x", "1", "2"});
  EXPECT_EQ(table.to_text(),
            "m      t  n\n"
            "   MiB/s\n"
            "-----------\n"
            "x      1  2\n");
}

TEST(Table, WidensTheLastColumnOfAGroupForALongHeading) {
  Table table({{"m", Align::kLeft},
               {"a", Align::kRight, "", "communication"},
               {"b", Align::kRight, "", "communication"},
               {"c"}});
  table.add_row({"x", "1", "2", "3"});
  EXPECT_EQ(table.to_text(),
            "   communication\n"
            "m  a           b  c\n"
            "-------------------\n"
            "x  1           2  3\n");
}

TEST(Table, RefusesARowOfAnotherSize) {
  Table table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), Error);
  EXPECT_THROW(table.add_row({"1", "2", "3"}), Error);
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_THROW(Table({}), Error);
}

TEST(Fixed, KeepsDecimalsAndHidesWhatIsNoNumber) {
  EXPECT_EQ(fixed(0.5, 3), "0.500");
  EXPECT_EQ(fixed(1380.2586, 2), "1380.26");
  EXPECT_EQ(fixed(-1.25, 1), "-1.2");
  EXPECT_EQ(fixed(-0.0001, 3), "0.000");
  EXPECT_EQ(fixed(7, 0), "7");
  EXPECT_EQ(fixed(std::nan(""), 2), "-");
  EXPECT_EQ(fixed(std::numeric_limits<double>::infinity(), 2), "-");
}

}  // namespace
}  // namespace zero::tools
