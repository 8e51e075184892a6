// What the others of a fake process group send: the first values, wherever a parameter's bytes lie.

#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/fake_process_group.hpp>

namespace zero::train {
namespace {

using testing::on_ranks;
using testing::Toy;

std::vector<at::Tensor> first_values() {
  Toy toy;
  nn::initialize_parameters(*toy.model, toy.values);
  return toy.model->parameters();
}

// Two parameters in one buffer: all of it, and any stretch of it.
TEST(FirstValues, AnyStretchOfABufferHasThemAndZerosBetween) {
  on_ranks(1, [](dist::Communicator&) {
    Toy toy;
    const auto source = first_values_of(*toy.model, toy.values);
    const std::vector<at::Tensor> expected = first_values();
    const nn::ParameterList list = nn::list_parameters(*toy.model);
    const at::Tensor& a = list.parameters[1].tensor;
    const at::Tensor& b = list.parameters[0].tensor;
    const std::int64_t at_a = 3, at_b = at_a + a.numel() + 5, n = at_b + b.numel() + 4;
    at::Tensor buffer = at::zeros({n});
    memory::place(a, buffer, at_a);
    memory::place(b, buffer, at_b);
    at::Tensor whole = at::zeros({n});
    whole.narrow(0, at_a, a.numel()).copy_(expected[1].detach().flatten());
    whole.narrow(0, at_b, b.numel()).copy_(expected[0].detach().flatten());
    for (const std::int64_t begin : {std::int64_t{0}, at_a, at_a + 1, at_b - 2, at_b + 2}) {
      for (const std::int64_t end : {at_a + 2, at_b + 1, at_b + b.numel() - 1, n}) {
        if (begin >= end) continue;
        buffer.fill_(-7);
        EXPECT_TRUE(source(buffer.narrow(0, begin, end - begin)));
        at::Tensor expected_now = at::full({n}, -7.F);
        expected_now.narrow(0, begin, end - begin).copy_(whole.narrow(0, begin, end - begin));
        EXPECT_TRUE(at::equal(buffer, expected_now)) << begin << " to " << end;
      }
    }
  });
}

TEST(FirstValues, OtherTensorsAreLeftAlone) {
  on_ranks(1, [](dist::Communicator&) {
    Toy toy;
    const auto source = first_values_of(*toy.model, toy.values);
    const at::Tensor parameter = nn::list_parameters(*toy.model).parameters[0].tensor;
    at::Tensor buffer = at::full({parameter.numel() + 2}, 4.F);
    EXPECT_FALSE(source(buffer));
    memory::place(parameter, buffer, 2);
    EXPECT_FALSE(source(buffer.narrow(0, 0, 2))) << "before the parameter";
    EXPECT_TRUE(at::equal(buffer, at::full_like(buffer, 4.F)));
  });
}

}  // namespace
}  // namespace zero::train
