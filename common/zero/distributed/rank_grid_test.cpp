// Ranks of two axes: what all of them exchange, and that a difference anywhere is seen everywhere.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <zero/distributed/rank_grid.hpp>

namespace zero::dist {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_error;
using testing::on_ranks;

// Ranks 0, 2, 4 and 1, 3, 5 are the data axes; neighbours are a tensor axis.
struct Axes {
  explicit Axes(Communicator& world) {
    const int t = world.rank() % 2, d = world.rank() / 2;
    data = world.split({t, 2 + t, 4 + t}, fmt::format("data {}", t));
    tensor = world.split({2 * d, 2 * d + 1}, fmt::format("tensor {}", d));
  }
  std::unique_ptr<Communicator> data, tensor;
};

TEST(RankGrid, CountsAlongItsFirstAxisAndExchangesWithAllRanks) {
  on_ranks(6, [](Communicator& world) {
    Axes axes(world);
    const RankGrid grid({axes.data.get(), axes.tensor.get()});
    EXPECT_EQ(grid.size(), 6);
    EXPECT_EQ(grid.rank(), 3 * axes.tensor->rank() + axes.data->rank());
    // Texts may hold anything.
    const auto all = grid.exchange(fmt::format("{}:\n{}", world.rank(), std::string(3, ':')));
    EXPECT_THAT(all, ElementsAre("0:\n:::", "2:\n:::", "4:\n:::", "1:\n:::", "3:\n:::", "5:\n:::"));
    EXPECT_THAT(grid.exchange(""), ElementsAre("", "", "", "", "", ""));
    grid.barrier();
    for (const Communicator* axis : {axes.data.get(), axes.tensor.get()}) {
      EXPECT_EQ(axis->traffic().at(Operation::kBarrier, Purpose::kControl).calls, 1);
    }
    world.barrier();
  });
}

TEST(RankGrid, ADifferenceOfOneRankIsAnErrorOnAllOfThem) {
  on_ranks(6, [](Communicator& world) {
    Axes axes(world);
    const RankGrid grid({axes.data.get(), axes.tensor.get()});
    for (int other = 0; other < 6; ++other) {
      const std::string mine = world.rank() == other ? "depth 3" : "depth 2";
      expect_error([&] { grid.verify_same_on_all_ranks("the depth", "model\n" + mine); },
                   {"ranks disagree about the depth", "depth 3", "depth 2"});
      EXPECT_EQ(error_of([&] { grid.verify_same_on_all_ranks("the depth", "model"); }), "");
    }
    world.barrier();
  });
}

TEST(RankGrid, OfOneAxisIsThatAxis) {
  on_ranks(2, [](Communicator& world) {
    const RankGrid grid({&world, nullptr});
    EXPECT_EQ(grid.rank(), world.rank());
    EXPECT_EQ(grid.size(), 2);
    EXPECT_THAT(grid.exchange(std::to_string(world.rank())), ElementsAre("0", "1"));
  });
}

}  // namespace
}  // namespace zero::dist
