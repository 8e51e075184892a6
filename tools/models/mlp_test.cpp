// The multi-layer perceptron beside the same by hand.

#include "mlp.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include <tests/support/tensors.hpp>
#include <tools/ladder/data/batch.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::tools {
namespace {

using testing::close_to;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::random;

struct MlpPair {
  explicit MlpPair(MlpConfig config = {.dtype = at::kDouble}) : model(std::move(config)) {
    nn::SeededValues values(1);
    nn::initialize_parameters(model, values);
    for (const auto& item : model.named_parameters()) {
      p[item.key()] = testing::leaf_of(item.value());
    }
  }
  // [B, outputs], from copies of the parameters.
  at::Tensor plain(const at::Tensor& x) const {
    at::Tensor y = x;
    for (std::size_t layer = 0; layer < model.config().hidden.size(); ++layer) {
      const std::string path = "layers." + std::to_string(layer) + ".linear.";
      y = (y.matmul(p.at(path + "weight").t()) + p.at(path + "bias")).tanh();
    }
    return y.matmul(p.at("output.weight").t()) + p.at("output.bias");
  }
  // Our loss and predictions against the plain form's, and the gradients of both.
  void expect_same(const data::Batch& batch) {
    const at::Tensor outputs = plain(batch.inputs);
    const at::Tensor expected = (outputs - batch.targets).square().mean();
    const at::Tensor ours = data::loss_of(model, batch);
    EXPECT_TRUE(close_to(ours, expected));
    EXPECT_TRUE(close_to(model.predict(batch.inputs), outputs));
    ours.backward();
    expected.backward();
    for (const auto& item : model.named_parameters()) {
      EXPECT_TRUE(close_to(item.value().grad(), p.at(item.key()).grad())) << item.key();
    }
  }
  Mlp model;
  std::map<std::string, at::Tensor> p;
};

data::Batch regression(std::int64_t samples, std::int64_t terms) {
  return {
      .inputs = random({samples, 13}, 5), .targets = random({samples, 3}, 6), .loss_terms = terms};
}

TEST(Mlp, HasAUnitForEachHiddenLayer) {
  MlpPair net;
  const nn::ParameterList list = nn::list_parameters(net.model);
  std::vector<std::string> parameters, units;
  for (const nn::Parameter& q : list.parameters) parameters.push_back(q.name);
  for (const nn::UnitInfo& unit : list.units) units.push_back(unit.name);
  EXPECT_THAT(parameters, ElementsAre("layers.0.linear.weight", "layers.0.linear.bias",
                                      "layers.1.linear.weight", "layers.1.linear.bias",
                                      "output.weight", "output.bias"));
  EXPECT_THAT(units, ElementsAre("", "layers.0", "layers.1"));
  EXPECT_EQ(list.numel(), 13 * 17 + 17 + 17 * 11 + 11 + 11 * 3 + 3);
  for (const nn::Parameter& q : list.parameters) {
    EXPECT_EQ(q.initializer->kind, nn::Initializer::Kind::kUniform);
  }
  EXPECT_DOUBLE_EQ(list.parameters[2].initializer->value, 1 / std::sqrt(17.0));
}

TEST(Mlp, LossesAndGradientsAreThePlainOnes) {
  MlpPair().expect_same(regression(4, 4));
  MlpPair linear({.hidden = {}, .dtype = at::kDouble});
  EXPECT_EQ(linear.model.parameters().size(), 2U);
  linear.expect_same(regression(2, 2));
}

TEST(Mlp, WeighsByTermsAndAnEmptyBatchIsZero) {
  MlpPair net;
  EXPECT_TRUE(close_to(data::loss_of(net.model, regression(4, 8)) * 2,
                       data::loss_of(net.model, regression(4, 4))));
  const at::Tensor empty = data::loss_of(net.model, regression(0, 0));
  EXPECT_EQ(empty.item<double>(), 0.0);
  empty.backward();
  for (const at::Tensor& p : net.model.parameters()) {
    EXPECT_EQ(p.grad().abs().max().item<double>(), 0.0);
  }
}

TEST(Mlp, SaysWhatABatchMustBe) {
  MlpPair net;
  data::Batch batch = regression(4, 4);
  batch.inputs = random({4, 12}, 5);
  expect_error([&] { data::loss_of(net.model, batch); }, {"Double [samples, 13]"});
  batch.inputs = at::zeros({4, 13}, at::kLong);
  expect_error([&] { net.model.predict(batch.inputs); }, {"Double [samples, 13]"});
  batch = regression(4, 4);
  batch.targets = random({4, 2}, 6);
  expect_error([&] { data::loss_of(net.model, batch); }, {"Double [4, 3]"});
  batch.targets = at::Tensor();
  expect_error([&] { data::loss_of(net.model, batch); }, {"Double [4, 3]"});
  EXPECT_EQ(net.model.predict(batch.inputs).sizes(), at::IntArrayRef({4, 3}));
  expect_error([] { Mlp({.inputs = 0}); }, {"at least 1"});
  expect_error([] { Mlp({.hidden = {4, 0}}); }, {"4 x 0"});
}

}  // namespace
}  // namespace zero::tools
