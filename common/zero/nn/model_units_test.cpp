// Which modules of a model are units.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <tests/support/error_of.hpp>
#include <zero/nn/model_units.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

struct Encoder : torch::nn::Module {
  Encoder() {
    register_module("project", torch::nn::Linear(4, 4));
    register_module("layers",
                    torch::nn::ModuleList(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)));
  }
};

// Two children with lists inside, one large and one small child, and a list without parameters.
struct Net : torch::nn::Module {
  Net() {
    register_module("encoder", std::make_shared<Encoder>());
    register_module("body",
                    torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)));
    register_module("large", torch::nn::Linear(100, 100));
    small = register_module("small", torch::nn::Linear(4, 4));
    register_module("empty", torch::nn::ModuleList());
    scale = register_parameter("scale", at::ones({1}));
  }
  torch::nn::Linear small{nullptr};
  at::Tensor scale;
};

TEST(ModelUnits, FindsElementsOfListsAndLargeChildren) {
  const Net net;
  EXPECT_THAT(default_units(/*bytes=*/10'000)(net),
              ElementsAre("encoder.layers.0", "encoder.layers.1", "body.0", "body.1", "large"));
  EXPECT_THAT(default_units(/*bytes=*/80)(net),
              ElementsAre("encoder.project", "encoder.layers.0", "encoder.layers.1", "body.0",
                          "body.1", "large", "small"));
}

TEST(ModelUnits, TakesUnitsByName) {
  const Net net;
  EXPECT_THAT(units_named({"encoder.layers.*", "large"})(net),
              UnorderedElementsAre("encoder.layers.0", "encoder.layers.1", "large"));
  testing::expect_error([&] { units_named({"encoder.layers.2"})(net); }, {"'encoder.layers.2'"});
}

TEST(ModelUnits, KeepsTheNamesOfTheModule) {
  Net net;
  const ModelUnits model(net, units_named({"body.1", "large"}));
  const ParameterList list = list_parameters(model);
  std::vector<std::string> names, units, plain;
  for (const Parameter& p : list.parameters) names.push_back(p.name);
  for (const UnitInfo& unit : list.units) units.push_back(unit.name);
  for (const auto& p : net.named_parameters()) plain.push_back(p.key());
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(plain));
  EXPECT_THAT(units, ElementsAre("", "body.1", "large"));
  EXPECT_EQ(list.parameters[0].name, "scale");
  EXPECT_EQ(list.parameters[0].unit, 0U);
}

TEST(ModelUnits, ATiedParameterBelongsToTheRoot) {
  Net net;
  net.small->weight =
      net.small->register_parameter("weight2", net.named_parameters()["body.0.weight"]);
  const ModelUnits model(net, units_named({"body.0", "small"}));
  const ParameterList list = list_parameters(model);
  for (const Parameter& p : list.parameters) {
    if (p.name == "body.0.weight") EXPECT_EQ(p.unit, 0U);
    if (p.name == "body.0.bias") EXPECT_EQ(list.units[p.unit].name, "body.0");
  }
}

TEST(MatchName, OnlyAStarStandsForOtherCharacters) {
  EXPECT_TRUE(match_name("blocks.0.bias", "blocks.*.bias"));
  EXPECT_FALSE(match_name("blocks.0.linear.bias", "blocks.*.bias"));
  EXPECT_FALSE(match_name("blocks_0", "blocks.0"));
  const std::string special = R"(a+b.(c)[d]{2}|e?^$\f)";
  EXPECT_TRUE(match_name(special, special));
  EXPECT_FALSE(match_name("aab", "a+b"));
}

}  // namespace
}  // namespace zero::nn
