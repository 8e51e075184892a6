#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <limits>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/set_variable.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/mesh.hpp>

namespace zero::dist {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::on_ranks;

std::vector<Mesh::Axis> two(int replicas, int shards) {
  return {{"replica", replicas}, {"shard", shards}};
}

// The ranks of a group by their numbers in the world.
std::vector<double> members(Communicator& group, int rank) {
  return all_gather_scalars(group, {static_cast<double>(rank)});
}

// Inside groups, then between them, from `sum` to `average`.
void average(const Mesh& mesh, const at::Tensor& average, const at::Tensor& sum) {
  Communicator &inside = mesh.along("shard"), &between = mesh.along("replica");
  inside.all_reduce(sum, Purpose::kGradient, ReduceOp::kSum).wait();
  const int ranks = inside.size() * between.size();
  between
      .all_reduce(average, sum, Purpose::kGradient,
                  Reduction::average_of_sums(ranks, ReduceType::kOwn))
      .wait();
}

TEST(Mesh, HasAGroupAlongEachAxisAndTheLastAxisVariesFastest) {
  on_ranks(6, [](Communicator& world) {
    const Mesh mesh(world, two(3, 2));
    const int rank = world.rank(), first = rank / 2 * 2, column = rank % 2;
    EXPECT_THAT(members(mesh.along("shard"), rank), ElementsAre(first, first + 1));
    EXPECT_THAT(members(mesh.along("replica"), rank), ElementsAre(column, column + 2, column + 4));
    EXPECT_EQ(mesh.along("shard").rank(), column);
    EXPECT_EQ(mesh.along("replica").rank(), rank / 2);
    EXPECT_EQ(mesh.text(), "replica 3 x shard 2");
    // A second mesh of the same ranks has groups of its own.
    const Mesh other(world, {{"a", 2}, {"b", Mesh::kRest}});
    EXPECT_EQ(other.along("b").size(), 3);
    EXPECT_THAT(members(other.along("a"), rank), ElementsAre(rank % 3, rank % 3 + 3));
  });
}

TEST(Mesh, CanBeOfThreeAxesAndOfOneOfThemAgain) {
  on_ranks(8, [](Communicator& world) {
    const int rank = world.rank();
    const Mesh mesh(world, {{"pipeline", 1}, {"data", Mesh::kRest}, {"tensor", 2}});
    EXPECT_EQ(mesh.along("pipeline").size(), 1);
    EXPECT_THAT(members(mesh.along("tensor"), rank), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    const Mesh data = mesh.with_shards(2);
    const int tensor = rank % 2, first = rank / 4 * 4 + tensor;
    EXPECT_THAT(members(data.along("shard"), rank), ElementsAre(first, first + 2));
    const std::int64_t before = world.traffic().bytes(Purpose::kGradient);
    at::Tensor t = at::ones({64});
    average(data, t, t);
    EXPECT_TRUE(at::equal(t, at::ones({64})));
    // The groups of a group count for the world.
    EXPECT_EQ(world.traffic().bytes(Purpose::kGradient) - before, 2 * 256);
  });
}

at::Tensor values_of(int rank, std::int64_t elements) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1));
  return at::randn({elements}, generator);
}

TEST(Mesh, AveragesInItsOrder) {
  constexpr std::int64_t kElements = 1001;
  on_ranks(6, [](Communicator& world) {
    const Mesh mesh(world, two(3, 2));
    at::Tensor tree, flat;
    for (int r = 0; r < 6; r += 2) {
      const at::Tensor sum = values_of(r, kElements) + values_of(r + 1, kElements);
      tree = tree.defined() ? tree + sum : sum;
    }
    for (int r = 0; r < 6; ++r) {
      flat = flat.defined() ? flat + values_of(r, kElements) : values_of(r, kElements);
    }
    ASSERT_FALSE(at::equal(tree, flat));
    at::Tensor mine = values_of(world.rank(), kElements);
    const Traffic before = world.traffic();
    average(mesh, mine, mine);
    EXPECT_TRUE(at::equal(mine, tree / at::full({}, 6.0F)));
    const Communicator &inside = mesh.along("shard"), &between = mesh.along("replica");
    EXPECT_EQ(world.traffic().since(before).bytes(),
              all_reduce_bytes(kElements, 4, inside.rank(), inside.size()) +
                  all_reduce_bytes(kElements, 4, between.rank(), between.size()));
  });
}

// The sum of a group stays in float32 when it is sent between the groups.
TEST(Mesh, RoundsSumsInFloat32Once) {
  constexpr std::int64_t kElements = 1001;
  on_ranks(4, [](Communicator& world) {
    const Mesh mesh(world, two(2, 2));
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const auto of = [&](int rank) { return values_of(rank, kElements).to(dtype); };
      const auto wide = [&](int rank) { return of(rank).to(at::kFloat); };
      const at::Tensor once = (((wide(0) + wide(1)) + (wide(2) + wide(3))) / 4).to(dtype);
      at::Tensor mine = of(world.rank());
      average(mesh, mine, mine.to(at::kFloat));
      EXPECT_TRUE(at::equal(mine, once));
      at::Tensor twice = of(world.rank());
      average(mesh, twice, twice);
      EXPECT_FALSE(at::equal(twice, once)) << "sums that travel in 2 bytes are rounded there";
    }
  });
}

TEST(Mesh, CountsTrafficByAxisLinkAndPurpose) {
  on_ranks(4, [](Communicator& world) {
    world.set_hosts({0, 0, 1, 1});
    const Mesh mesh = Mesh(world).with_shards(Mesh::kRanksOfHost);
    EXPECT_EQ(mesh.text(), "replica 2 x shard 2");
    const Traffic before = world.traffic();
    at::Tensor full = at::ones({64}), half = at::ones({32});
    mesh.along("shard").all_gather(full, half, Purpose::kParameter).wait();
    mesh.along("replica").all_reduce(half, Purpose::kGradient).wait();
    world.all_reduce(full, Purpose::kControl).wait();
    const Traffic& inside = mesh.along("shard").traffic();
    const Traffic& between = mesh.along("replica").traffic();
    EXPECT_EQ(inside.bytes(), 128);
    EXPECT_EQ(inside.between_hosts(Purpose::kParameter), 0);
    EXPECT_EQ(between.bytes(), 128);
    EXPECT_EQ(between.between_hosts(Purpose::kGradient), 128);
    const Traffic all = world.traffic().since(before);
    EXPECT_EQ(all.bytes(Purpose::kParameter), 128);
    EXPECT_EQ(all.bytes(Purpose::kGradient), 128);
    EXPECT_EQ(all.between_hosts(Purpose::kGradient), 128);
    // Three ranks get a quarter of the values and of the sum; two are on the other host.
    EXPECT_EQ(all.bytes(Purpose::kControl), 3 * 2 * 64);
    EXPECT_EQ(all.between_hosts(Purpose::kControl), 2 * 2 * 64);
    EXPECT_EQ(all.between_hosts(), 128 + 2 * 2 * 64);
    EXPECT_EQ(all.calls(Purpose::kParameter), 1);
  });
}

TEST(Mesh, FindsWhoseGradientIsNotFiniteAcrossGroups) {
  on_ranks(4, [](Communicator& world) {
    const Mesh mesh(world, two(2, 2));
    at::Tensor gradient = at::ones({64}), shard = at::ones({32});
    if (world.rank() == 3) gradient[5] = std::numeric_limits<float>::infinity();
    mesh.along("shard").reduce_scatter(shard, gradient, Purpose::kGradient, ReduceOp::kSum).wait();
    mesh.along("replica")
        .all_reduce(shard, Purpose::kGradient, Reduction::average_of_sums(4, ReduceType::kOwn))
        .wait();
    // Rank 2 adds up the infinity and notes rank 3; rank 0 only gets the sum.
    const std::vector<bool> none(4, false), third = {false, false, false, true};
    EXPECT_EQ(world.not_finite().take(), world.rank() == 2 ? third : none);
  });
}

TEST(Mesh, RefusesSizesThatDoNotFitOnAllRanks) {
  on_ranks(4, [](Communicator& world) {
    const auto refuses = [&](std::vector<Mesh::Axis> axes, const std::string& why) {
      expect_error([&] { Mesh(world, axes); }, {why});
    };
    const auto refuses_shards = [&](std::int64_t size, const std::string& why) {
      expect_error([&] { Mesh(world).with_shards(size); }, {why});
    };
    refuses({{"data", 2}, {"tensor", 1}, {"data", 2}}, "it has two axes 'data'");
    refuses_shards(0,
                   "a mesh of replica x shard 0 does not fit 4 ranks: the size of shard must be "
                   "from 1 to 4");
    refuses_shards(8, "the size of shard must be from 1 to 4");
    refuses_shards(std::numeric_limits<std::int64_t>::max(), "must be from 1 to 4");
    refuses_shards((std::int64_t{1} << 32) + 2, "must be from 1 to 4");  // as an int it is 2
    refuses_shards(3, "4 is not a multiple of 3");
    refuses(two(1, 2), "it has 2 places");
    refuses(two(4, 4), "4 is not a multiple of 16");
    refuses({{"a", Mesh::kRest}, {"b", Mesh::kRest}}, "one axis at most can have the rest");
    refuses_shards(world.rank() < 2 ? 1 : 2, "ranks disagree about the mesh of ranks");
    expect_error(
        [&] {
          Mesh(world, {{"tensor", 4}}).with_shards(2);
        },
        {"a mesh of tensor 4 has no axis 'data' to cut"});
    EXPECT_THAT(error_of([&] { Mesh(world, two(2, 2)).along("tensor"); }),
                HasSubstr("no axis 'tensor', it has replica and shard"));
    at::Tensor t = at::ones({4});  // the ranks still understand each other
    world.all_reduce(t, Purpose::kControl).wait();
  });
}

TEST(Mesh, ByHostNeedsHostsOfEqualSizeWithConsecutiveRanks) {
  on_ranks(4, [](Communicator& world) {
    EXPECT_EQ(Mesh(world).with_shards(Mesh::kRanksOfHost).text(), "replica 1 x shard 4");
    world.set_hosts({0, 1, 0, 1});
    expect_error([&] { Mesh(world).with_shards(Mesh::kRanksOfHost); },
                 {"ranks 0 and 2 are on one host", "or give the size of shard"});
    world.set_hosts({0, 0, 0, 1});
    expect_error([&] { Mesh(world).with_shards(Mesh::kRanksOfHost); },
                 {"ranks disagree about the mesh of ranks", "shard 3", "shard 1"});
    EXPECT_EQ(error_of([&] {
                world.set_hosts({0, 1});
              }),
              "2 hosts for 4 ranks: give the host of every rank");
  });
}

TEST(Mesh, OfACommunicatorHasOnlyDataRanks) {
  on_ranks(2, [](Communicator& world) {
    const Mesh mesh = world;
    EXPECT_EQ(&mesh.data(), &world);
    EXPECT_EQ(mesh.text(), "data 2");
    for (Communicator* axis : {&mesh.tensor(), &mesh.pipeline()}) {
      EXPECT_EQ(axis->size(), 1);
      at::Tensor t = at::full({3}, world.rank());
      axis->all_reduce(t, Purpose::kControl, ReduceOp::kSum).wait();
      EXPECT_TRUE(at::equal(t, at::full({3}, world.rank())));
      EXPECT_THAT(axis->exchange("mine"), ElementsAre("mine"));
    }
    EXPECT_EQ(world.traffic().calls(Purpose::kControl), 0);
    // With none of the axes of training, all ranks are data ranks.
    EXPECT_EQ(&Mesh(world, two(2, 1)).data(), &world);
    EXPECT_EQ(Mesh(world, {{"tensor", 2}}).data().size(), 1);
  });
}

// Groups number their ranks from 0; the data axes here are ranks 0 and 2, and 1 and 3.
TEST(MeshMessages, OfAnAxisNameRanksOfTheWorld) {
  on_ranks(4, [](Communicator& world) {
    const Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
    const int rank = world.rank(), first = rank % 2, second = first + 2;
    expect_error([&] { verify_same(mesh.data(), "it", std::to_string(rank / 2)); },
                 {fmt::format("rank {} has 0, rank {} has 1", first, second)});
    const auto refuse = [&] {
      if (rank == second) throw Error("no more");
    };
    expect_error([&] { run_on_all_ranks(mesh.data(), "the work", refuse); },
                 {fmt::format("the work: rank {}: no more", second)});
    at::Tensor tensor = at::ones({40});
    expect_error(
        [&] {
          Communicator& data = mesh.data();
          rank == first ? data.broadcast(tensor, 1, Purpose::kSetup).wait()
                        : data.all_reduce(tensor, Purpose::kSetup).wait();
          data.barrier();
        },
        {fmt::format("rank {} is in ", first), fmt::format("rank {} is in ", second),
         fmt::format("broadcast of 40 Float for setup, root {}", second)});
  });
}

TEST(MeshMessages, OfARankThatCannotConnectNameRanksOfTheWorld) {
  const auto exits = testing::ranks_ended({.world_size = 3, .timeout = std::chrono::seconds(1)},
                                          [](Communicator& world) {
                                            if (world.rank() == 2)
                                              world.split({1, 2}, "which rank 1 does not join");
                                          });
  testing::expect_errors({exits[2]}, HasSubstr("rank 2 could not connect"));
}

TEST(MeshMessages, OfALostRankNameRanksOfTheWorld) {
  for (const char* transport : {"host", "tcp"}) {
    SCOPED_TRACE(transport);
    const testing::SetVariable chosen("ZERO_TRANSPORT", transport);
    const auto exits = testing::ranks_ended({.world_size = 4}, [](Communicator& world) {
      const Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
      world.barrier();
      if (world.rank() == 3) ::raise(SIGKILL);
      if (world.rank() == 0) return;
      // Rank 1 shares the data axis with rank 3, rank 2 the tensor axis.
      mesh.along(world.rank() == 1 ? "data" : "tensor").barrier();
    });
    testing::expect_errors({exits[1], exits[2]}, HasSubstr("the connection to rank 3 is gone"));
  }
}

TEST(Mesh, KnowsThePlacesOfAllRanks) {
  on_ranks(8, [](Communicator& world) {
    const Mesh whole(world, {{"data", 2}, {"pipeline", 2}, {"tensor", 2}});
    const Mesh last(world, {{"tensor", 2}, {"data", 4}});
    for (const Mesh& mesh : {whole, whole.with_shards(2), last, last.with_shards(2), Mesh(world)}) {
      const std::map<std::string_view, int> places = {{"data", mesh.data().rank()},
                                                      {"pipeline", mesh.pipeline().rank()},
                                                      {"tensor", mesh.tensor().rank()}};
      for (const auto& [axis, mine] : places) {
        const std::vector<double> all = members(world, mine);
        for (int r = 0; r < 8; ++r) {
          EXPECT_EQ(mesh.place(r, {axis}), all[static_cast<std::size_t>(r)]) << mesh.text() << axis;
        }
      }
      for (int r = 0; r < 8; ++r) {
        const bool same = mesh.shares(r, {"pipeline"}) && mesh.shares(r, {"tensor"});
        EXPECT_EQ(mesh.shares(r, {"pipeline", "tensor"}), same);
      }
    }
  });
}

TEST(Mesh, AnyIsSeenByAllRanks) {
  on_ranks(4, [](Communicator& world) {
    const Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
    EXPECT_FALSE(mesh.any(false));
    for (int r = 0; r < 4; ++r) EXPECT_TRUE(mesh.any(world.rank() == r));
  });
}

}  // namespace
}  // namespace zero::dist
