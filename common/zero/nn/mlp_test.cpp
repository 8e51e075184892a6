// The multi-layer perceptron beside the same by hand.

#include <gmock/gmock.h>

#include <cmath>

#include <tests/support/tensors.hpp>
#include <zero/nn/mlp.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::random;

struct Net {
  explicit Net(MlpConfig config = {.dtype = at::kDouble}) : model(std::move(config)) {
    SeededValues values(1);
    initialize_parameters(model, values);
    for (const auto& item : model.named_parameters()) {
      p[item.key()] = testing::leaf_of(item.value());
    }
  }
  // [B, outputs], from copies of the parameters.
  at::Tensor plain(const at::Tensor& x) const {
    const bool relu = model.config().activation == MlpConfig::Activation::kRelu;
    at::Tensor y = x;
    for (std::size_t layer = 0; layer < model.config().hidden.size(); ++layer) {
      const std::string path = "layers." + std::to_string(layer) + ".linear.";
      y = y.matmul(p.at(path + "weight").t()) + p.at(path + "bias");
      y = relu ? y.clamp_min(0) : y.tanh();
    }
    return y.matmul(p.at("output.weight").t()) + p.at("output.bias");
  }
  void expect_same_gradients() const {
    for (const auto& item : model.named_parameters()) {
      EXPECT_TRUE(close_to(item.value().grad(), p.at(item.key()).grad())) << item.key();
    }
  }
  Mlp model;
  std::map<std::string, at::Tensor> p;
};

data::Batch regression(std::int64_t samples, std::int64_t terms) {
  data::Batch batch;
  batch.inputs = random({samples, 13}, 5);
  batch.targets = random({samples, 3}, 6);
  batch.loss_terms = terms;
  return batch;
}

TEST(Mlp, HasAUnitForEachHiddenLayer) {
  Net net;
  const ParameterList list = list_parameters(net.model);
  std::vector<std::string> parameters, units;
  for (const Parameter& q : list.parameters) parameters.push_back(q.name);
  for (const UnitInfo& unit : list.units) units.push_back(unit.name);
  EXPECT_THAT(parameters, ElementsAre("layers.0.linear.weight", "layers.0.linear.bias",
                                      "layers.1.linear.weight", "layers.1.linear.bias",
                                      "output.weight", "output.bias"));
  EXPECT_THAT(units, ElementsAre("", "layers.0", "layers.1"));
  EXPECT_EQ(list.numel(), 13 * 17 + 17 + 17 * 11 + 11 + 11 * 3 + 3);
  for (const Parameter& q : list.parameters) {
    EXPECT_EQ(q.initializer->kind, Initializer::Kind::kUniform);
  }
  EXPECT_DOUBLE_EQ(list.parameters[2].initializer->value, 1 / std::sqrt(17.0));
}

TEST(Mlp, MeanSquaredErrorAndItsGradientsAreThePlainOnes) {
  Net net;
  const data::Batch batch = regression(4, 4);
  const at::Tensor ours = net.model.loss(batch);
  const at::Tensor plain = (net.plain(batch.inputs) - batch.targets).square().mean();
  EXPECT_TRUE(close_to(ours, plain));
  ours.backward();
  plain.backward();
  net.expect_same_gradients();
  EXPECT_TRUE(close_to(net.model.predict(batch), net.plain(batch.inputs)));
}

TEST(Mlp, CrossEntropyWithReluIsThePlainOne) {
  Net net({.inputs = 13,
           .hidden = {6},
           .outputs = 4,
           .activation = MlpConfig::Activation::kRelu,
           .loss = MlpConfig::Loss::kCrossEntropy,
           .dtype = at::kDouble});
  data::Batch batch;
  batch.inputs = random({3, 13}, 5);
  batch.targets = testing::longs({2, 0, 3});
  batch.loss_terms = 3;
  const at::Tensor ours = net.model.loss(batch);
  const at::Tensor plain =
      -net.plain(batch.inputs).log_softmax(1).gather(1, batch.targets.unsqueeze(1)).mean();
  EXPECT_TRUE(close_to(ours, plain));
  ours.backward();
  plain.backward();
  net.expect_same_gradients();
}

TEST(Mlp, IsLinearWithoutHiddenLayers) {
  Net net({.hidden = {}, .dtype = at::kDouble});
  EXPECT_EQ(net.model.parameters().size(), 2U);
  const data::Batch batch = regression(2, 2);
  EXPECT_TRUE(close_to(net.model.predict(batch), net.plain(batch.inputs)));
}

TEST(Mlp, WeighsByTermsAndAnEmptyBatchIsZero) {
  Net net;
  EXPECT_TRUE(close_to(net.model.loss(regression(4, 8)) * 2, net.model.loss(regression(4, 4))));
  const at::Tensor empty = net.model.loss(regression(0, 0));
  EXPECT_EQ(empty.item<double>(), 0.0);
  empty.backward();
  for (const at::Tensor& p : net.model.parameters()) {
    EXPECT_EQ(p.grad().abs().max().item<double>(), 0.0);
  }
}

TEST(Mlp, SaysWhatABatchMustBe) {
  Net net;
  data::Batch batch = regression(4, 4);
  batch.inputs = random({4, 12}, 5);
  EXPECT_THAT(error_of([&] { net.model.loss(batch); }), HasSubstr("Double [samples, 13]"));
  batch.inputs = at::zeros({4, 13}, at::kLong);
  EXPECT_THAT(error_of([&] { net.model.predict(batch); }), HasSubstr("Double [samples, 13]"));
  batch = regression(4, 4);
  batch.targets = random({4, 2}, 6);
  EXPECT_THAT(error_of([&] { net.model.loss(batch); }), HasSubstr("Double [4, 3]"));
  batch.targets = at::Tensor();
  EXPECT_THAT(error_of([&] { net.model.loss(batch); }), HasSubstr("Double [4, 3]"));
  EXPECT_EQ(net.model.predict(batch).sizes(), at::IntArrayRef({4, 3}));
  EXPECT_THAT(error_of([] { Mlp({.inputs = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(error_of([] { Mlp({.hidden = {4, 0}}); }), HasSubstr("4 x 0"));
}

}  // namespace
}  // namespace zero::nn
