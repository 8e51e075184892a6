#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/held_model.hpp>

namespace zero::train {
namespace {

using testing::expect_error;
using testing::Toy;

nn::ParameterList free_parameters(const StrategyArguments& arguments) {
  std::optional<nn::ModelUnits> units;
  return HeldModel::free_parameters(arguments, units);
}

// Runs `body` with a model and the arguments of a strategy for it.
void on_one_rank(Toy toy,
                 const std::function<void(const Toy& toy, const StrategyArguments&)>& body) {
  testing::on_ranks(1, [&](dist::Communicator& communicator) {
    body(toy, {.module = *toy.model, .mesh = communicator, .optimizer = {}, .mode = "zero9"});
  });
}

TEST(HeldModel, IsRefusedToOthersUntilItIsReleased) {
  on_one_rank(Toy::alone(), [](const Toy&, const StrategyArguments& arguments) {
    const nn::ParameterList list = free_parameters(arguments);
    HeldModel held(arguments, list, [] {});
    expect_error([&] { free_parameters(arguments); }, {"held by zero9", "release()"});
    held.verify_not_released();
    std::vector<at::Tensor> values;
    for (const nn::Parameter& p : list.parameters) {
      values.push_back(at::full({p.numel()}, 7.0));
    }
    held.release(values);
    expect_error([&] { held.verify_not_released(); }, {"zero9 has released"});
    EXPECT_EQ(free_parameters(arguments).parameters[0].tensor.max().item<float>(), 7.0F);
  });
}

TEST(HeldModel, NamesAParameterWithOtherMemory) {
  on_one_rank(Toy::alone(), [](const Toy&, const StrategyArguments& arguments) {
    const nn::ParameterList list = free_parameters(arguments);
    HeldModel held(arguments, list, [] {});
    held.note_storages();
    held.verify_storages();
    const nn::Parameter& p = list.parameters[2];
    p.tensor.set_data(p.tensor.detach().clone());
    expect_error([&] { held.verify_storages(); }, {p.name, "zero9"});
  });
}

// As if a constructor had thrown early, or a strategy had ended without release().
TEST(HeldModel, IsFreeAgainUnlessSomethingOfItIsGone) {
  on_one_rank(Toy(), [](const Toy& toy, const StrategyArguments& arguments) {
    const nn::ParameterList list = nn::list_parameters(*toy.model);
    {
      const HeldModel held(arguments, list, [] {});
    }
    expect_error([&] { free_parameters(arguments); }, {"no values", list.parameters[0].name});
    nn::SeededValues values(1);
    StrategyArguments with_values = arguments;
    with_values.values = &values;
    EXPECT_EQ(free_parameters(with_values).size(), list.size());
  });
  on_one_rank(Toy::alone(), [](const Toy&, const StrategyArguments& arguments) {
    const nn::ParameterList list = free_parameters(arguments);
    {
      const HeldModel held(arguments, list, [] {});
      memory::release_storage(list.parameters[0].tensor);
    }
    expect_error([&] { free_parameters(arguments); }, {"no values", "without release()"});
    EXPECT_THAT(testing::thrown_by([&] { list.parameters[0].tensor.sum(); }),
                ::testing::HasSubstr(list.parameters[0].name));
  });
}

}  // namespace
}  // namespace zero::train
