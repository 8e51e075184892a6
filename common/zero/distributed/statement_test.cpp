#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <zero/distributed/statement.hpp>

namespace zero::dist {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::on_ranks;

// Ranks 0 to 7: two data ranks, two stages, two tensor ranks.
Mesh three_axes(Communicator& world) {
  return {world, {{"data", 2}, {"pipeline", 2}, {"tensor", 2}}};
}

TEST(Statement, BringsTheNumbersOfAllRanksInOneExchange) {
  on_ranks(8, [](Communicator& world) {
    const Mesh mesh = three_axes(world);
    const Traffic before = world.traffic();
    const double rank = world.rank();
    const auto all = exchange(
        mesh, {.topics = {{"the stage", std::to_string(mesh.pipeline().rank())},
                          {"the part", std::to_string(world.rank() % 4), {"pipeline", "tensor"}}},
               .numbers = {rank, -rank}});
    ASSERT_EQ(all.size(), 8U);
    for (int r = 0; r < 8; ++r) EXPECT_THAT(all[static_cast<std::size_t>(r)], ElementsAre(r, -r));
    const Traffic sent = world.traffic().since(before);
    EXPECT_EQ(sent.calls(Purpose::kControl), 1);
    EXPECT_EQ(sent.calls(Purpose::kSetup), 0);
  });
}

TEST(Statement, AProblemIsAnErrorOnAllRanks) {
  on_ranks(8, [](Communicator& world) {
    const Mesh mesh = three_axes(world);
    const bool has = world.rank() == 3 || world.rank() == 6;
    expect_error([&] { exchange(mesh, {.problem = has ? "it rains on {ranks}" : ""}); },
                 {"it rains on ranks 3, 6"});
    EXPECT_EQ(exchange(mesh, {}).size(), 8U);
  });
}

TEST(Statement, ADifferenceIsAnErrorOnAllRanks) {
  on_ranks(8, [](Communicator& world) {
    const Mesh mesh = three_axes(world);
    const std::vector<Mesh::AxisNames> all = {{"pipeline"}, {"pipeline", "tensor"}, {"data"}};
    for (int other = 0; other < 8; ++other) {
      for (const Mesh::AxisNames& axes : all) {
        std::string text = fmt::format("place {}", mesh.place(world.rank(), axes));
        if (world.rank() == other) text += " or another";
        expect_error(
            [&] {
              exchange(mesh, {.topics = {{"the place", text, axes}}});
            },
            {"ranks disagree about the place", fmt::format("rank {} has", other), "or another"});
      }
    }
  });
}

// Those of the second half know themselves as 0 to 3.
TEST(Statement, NamesRanksByTheirNumbersInTheWorld) {
  on_ranks(8, [](Communicator& world) {
    const Mesh halves(world, {{"half", 2}, {"rest", 4}});
    const Mesh mesh = halves.along("rest");
    const bool has = world.rank() % 4 == 3;
    expect_error([&] { exchange(mesh, {.problem = has ? "it rains on {ranks}" : ""}); },
                 {fmt::format("it rains on rank {}", world.rank() / 4 * 4 + 3)});
    expect_error(
        [&] {
          exchange(mesh, {.topics = {{"it", has ? "rain" : "sun"}}});
        },
        {fmt::format("rank {} has rain", world.rank() / 4 * 4 + 3)});
  });
}

}  // namespace
}  // namespace zero::dist
