#include <gmock/gmock.h>

#include <tests/support/test_unit.hpp>
#include <zero/train/backward/unit_use.hpp>

namespace zero::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// An operation with a gradient that was there before hold() says nothing of what happened since.
TEST(UnitUse, OnlyAReadSinceHoldKeepsAUnitInBackward) {
  testing::TestUnit root;
  const at::Tensor weight = root.add("weight", {3});
  const nn::ParameterList list = nn::list_parameters(root);
  UnitUse use(list);
  const at::Tensor older = weight.sum();
  use.hold(0);
  use.release(0);
  EXPECT_THAT(use.begin_backward(), IsEmpty());
  use.end_backward();
  use.hold(0);
  const at::Tensor read = weight.sum();
  use.release(0);
  EXPECT_THAT(use.begin_backward(), ElementsAre(0));
  EXPECT_TRUE(use.is_held(0));
  use.end_backward();
  EXPECT_FALSE(use.is_held(0));
  EXPECT_THAT(use.begin_backward(), IsEmpty());  // it counts once
}

}  // namespace
}  // namespace zero::train
