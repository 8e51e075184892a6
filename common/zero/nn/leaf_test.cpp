// Layers as units of their own: when their hooks are called, and what belongs to them.

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <map>

#include <tests/support/tensors.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/layers.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::ElementsAre;
using testing::identical;
using testing::random;

Initializer normal() { return Initializer::normal(0.5); }

// Two layers that read the same input, one that is used twice, and a parameter of its own.
class Forked : public Unit {
 public:
  Forked() {
    gain_ = add_parameter("gain", {4}, Initializer::constant(1.5), at::kDouble);
    left_ = register_module("left", std::make_shared<Linear>(4, 4, normal(), at::kDouble));
    right_ = register_module("right", std::make_shared<Linear>(4, 4, normal(), at::kDouble));
    table_ = register_module("table", std::make_shared<Embedding>(5, 4, normal(), at::kDouble));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
    return run([&] { return body(x, ids); }, {x});
  }
  at::Tensor body(const at::Tensor& x, const at::Tensor& ids) {
    const at::Tensor looked_up = table_->forward(ids);
    const at::Tensor y = x * gain_ + looked_up;
    const at::Tensor left = left_->forward(y);
    return table_->as_head(left + right_->forward(y));
  }
  const std::shared_ptr<Linear>& left() const { return left_; }

 private:
  at::Tensor gain_;
  std::shared_ptr<Linear> left_, right_;
  std::shared_ptr<Embedding> table_;
};

class Leaves : public ::testing::Test, public UnitHooks {
 protected:
  Leaves() {
    SeededValues values(3);
    initialize_parameters(model, values);
    for (const UnitInfo& info : list_parameters(model, Granularity::kLeaf).units) {
      names[info.unit] = info.name.empty() ? "root" : info.name;
    }
  }
  ~Leaves() override { set_hooks(model, nullptr); }

  void pre_forward(Unit& unit) override { said.push_back(names.at(&unit) + " forward"); }
  void post_forward(Unit& unit) override { said.push_back(names.at(&unit) + " done"); }
  void pre_backward(Unit& unit) override { said.push_back(names.at(&unit) + " backward"); }
  void post_backward(Unit& unit) override { said.push_back(names.at(&unit) + " passed"); }

  std::vector<std::string> take() { return std::exchange(said, {}); }

  Forked model;
  at::Tensor x = random({3, 4}, 1, /*requires_grad=*/true);
  at::Tensor ids = testing::longs({4, 0, 4});
  std::map<Unit*, std::string> names;
  std::vector<std::string> said;
};

TEST_F(Leaves, AreUnitsOnlyForThoseWhoAskForThem) {
  EXPECT_EQ(list_parameters(model).units.size(), 1U);
  const ParameterList list = list_parameters(model, Granularity::kLeaf);
  std::vector<std::string> units, unit_of_parameter;
  for (const UnitInfo& info : list.units) units.push_back(info.name);
  for (const Parameter& p : list.parameters) unit_of_parameter.push_back(list.units[p.unit].name);
  EXPECT_THAT(units, ElementsAre("", "left", "right", "table"));
  EXPECT_THAT(unit_of_parameter, ElementsAre("", "left", "right", "table"));
}

TEST_F(Leaves, AWeightOfTwoLeavesBelongsToTheUnitAroundBoth) {
  model.left()->register_parameter("second", model.named_parameters()["right.weight"]);
  const ParameterList list = list_parameters(model, Granularity::kLeaf);
  for (const Parameter& p : list.parameters) {
    const bool shared = p.name == "left.second" || p.name == "right.weight";
    EXPECT_EQ(p.unit == 0U, shared || p.name == "gain") << p.name;
  }
  Forked another;
  EXPECT_EQ(list.size(), list_parameters(another).size());
}

TEST_F(Leaves, HaveHooksAroundEachUse) {
  set_hooks(model, this, Granularity::kLeaf);
  const at::Tensor y = model.forward(x, ids);
  EXPECT_THAT(take(), ElementsAre("root forward", "table forward", "table done", "left forward",
                                  "left done", "right forward", "right done", "table forward",
                                  "table done", "root done"));
  y.sum().backward();
  // What reads the same input is over one after the other, not when the last of them is.
  EXPECT_THAT(take(), ElementsAre("root backward", "table backward", "table passed",
                                  "right backward", "right passed", "left backward", "left passed",
                                  "root passed", "table backward"));
}

TEST_F(Leaves, HaveNoneWithoutBeingAskedFor) {
  set_hooks(model, this, Granularity::kLeaf);
  set_hooks(model, this);
  model.forward(x, ids).sum().backward();
  EXPECT_THAT(take(), ElementsAre("root forward", "root done", "root backward", "root passed"));
}

TEST_F(Leaves, RunOnceMoreInACheckpoint) {
  set_hooks(model, this, Granularity::kLeaf);
  const at::Tensor y = checkpoint(
      [this](const std::vector<at::Tensor>& in) { return model.left()->forward(in[0]); }, {x});
  EXPECT_THAT(take(), ElementsAre("left forward", "left done"));
  y.sum().backward();
  EXPECT_THAT(take(), ElementsAre("left forward", "left done", "left backward", "left passed"));
}

TEST_F(Leaves, ChangeNoBit) {
  std::vector<at::Tensor> results[2];
  for (const Granularity granularity : {Granularity::kUnit, Granularity::kLeaf}) {
    auto& result = results[granularity == Granularity::kLeaf ? 1 : 0];
    set_hooks(model, this, granularity);
    x.mutable_grad().reset();
    for (const at::Tensor& p : model.parameters()) p.mutable_grad().reset();
    const at::Tensor y = model.forward(x, ids);
    y.square().sum().backward();
    result = {y.detach(), x.grad()};
    for (const at::Tensor& p : model.parameters()) result.push_back(p.grad().clone());
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(identical(results[0][i], results[1][i])) << i;
  }
}

TEST_F(Leaves, HaveNoBackwardHooksWithoutAGraph) {
  set_hooks(model, this, Granularity::kLeaf);
  const c10::NoGradGuard no_grad;
  model.left()->forward(x);
  EXPECT_THAT(take(), ElementsAre("left forward", "left done"));
}

}  // namespace
}  // namespace zero::nn
