#include "sheet.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace zero::plan {
namespace {

TEST(Sheet, IsATableAndAListOfObjectsOfTheSameFigures) {
  Sheet sheet(Unit::kGB);
  sheet.columns({"way", "ranks"}).columns({"in all"}, "GB", "a rank sends");
  sheet.columns({"time"}, "s").columns({"idle"}, "%").columns({"fits"});
  sheet.add({"DDP", 1024, 2'500'000'000, 0.25, 0.125, true});
  sheet.add({"none", 8, {}, {}, {}, false});
  EXPECT_EQ(sheet.to_text(),
            "             a rank sends\n"
            "way   ranks        in all   time  idle  fits\n"
            "                       GB      s     %\n"
            "--------------------------------------------\n"
            "DDP   1,024          2.50  0.250  12.5  yes\n"
            "none      8             -      -     -  no\n");
  EXPECT_EQ(sheet.to_json(), base::Json::parse(R"([
    {"way": "DDP", "ranks": 1024, "a_rank_sends_in_all_bytes": 2500000000, "time_seconds": 0.25,
     "idle": 0.125, "fits": true},
    {"way": "none", "ranks": 8, "a_rank_sends_in_all_bytes": null, "time_seconds": null,
     "idle": null, "fits": false}])"));
}

}  // namespace
}  // namespace zero::plan
