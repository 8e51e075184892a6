#include "table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zero::tools {
namespace {

TEST(Table, PrintsUnitsAndGroupsOnlyWhereThereAreAny) {
  EXPECT_EQ(table_text({{"mode", Align::kLeft},
                        {"mean", Align::kRight, "MiB", "parameters"},
                        {"max", Align::kRight, "MiB", "parameters"},
                        {"step", Align::kRight, "s"}},
                       {{"zero3", "690.12", "690.31", "4.125"}}),
            "        parameters\n"
            "mode     mean    max   step\n"
            "          MiB    MiB      s\n"
            "---------------------------\n"
            "zero3  690.12 690.31  4.125\n");
}

TEST(Table, WidensTheLastColumnOfAGroupForALongHeading) {
  EXPECT_EQ(table_text({{"m", Align::kLeft},
                        {"a", Align::kRight, "", "communication"},
                        {"b", Align::kRight, "", "communication"},
                        {"c"}},
                       {{"x", "1", "2", "3"}}),
            "   communication\n"
            "m  a           b  c\n"
            "-------------------\n"
            "x  1           2  3\n");
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
