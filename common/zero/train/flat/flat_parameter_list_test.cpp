#include <limits>

#include <tests/support/ranks.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/train/flat/flat_parameter_list.hpp>

namespace zero::train {
namespace {

// The root stays whole while units are gathered ahead, so its size does not matter to them.
TEST(FlatParameterList, TheLargestShardedUnitIsNotTheRoot) {
  testing::on_ranks(2, [](dist::Communicator& communicator) {
    testing::TestUnit root;
    root.add("large", {1000});
    root.add_unit("a")->add("weight", {300});
    root.add_unit("b")->add("weight", {200});
    root.add_unit("whole")->add("weight", {500});
    const nn::ParameterList list = nn::list_parameters(root);
    memory::StoragePool pool;
    const FlatParameterList flat(
        list, std::numeric_limits<std::int64_t>::max(),
        [](std::size_t unit) {
          return FlatOptions{.sharded = unit == 3 ? Sharded::kGradients : Sharded::kParameters};
        },
        communicator, pool);
    EXPECT_EQ(flat.largest_sharded_unit(), 8 * ShardLayout({300}, 2).total());
  });
}

}  // namespace
}  // namespace zero::train
