// Training in a group of some of the ranks.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <tests/support/session.hpp>

namespace zero::testing {
namespace {

// A group that is not all ranks, in another order than theirs.
TEST(SubGroup, TrainsLikeAGroupOfItsOwn) {
  on_ranks(4, [](dist::Communicator& world) {
    const bool odd = world.rank() % 2 == 1;
    // {0, 2} in order, {3, 1} turned round: the rank in the group decides, not the one in the
    // world.
    const auto group =
        world.split(odd ? std::vector{3, 1} : std::vector{0, 2}, odd ? "odd" : "even");
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->rank(), world.rank() == 2 || world.rank() == 1 ? 1 : 0);
    for (const std::string& mode : all_modes()) {
      Session session(*group, mode, SessionOptions());
      for (int s = 0; s < 2; ++s) session.step(s);
      for (const at::Tensor& weight : session.weights()) {
        const at::Tensor flat = weight.flatten();
        at::Tensor all = at::empty({4 * flat.numel()});
        world.all_gather(all, flat, dist::Purpose::kControl).wait();
        for (int r = 0; r < 4; ++r) {
          EXPECT_TRUE(at::equal(all.narrow(0, r * flat.numel(), flat.numel()), flat)) << mode;
        }
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
