// Parameters and units of the models that have names, and their hooks.

#include <gmock/gmock.h>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using ::testing::ElementsAre;

struct Shape {
  std::string preset;
  std::int64_t classes;
  std::size_t tensors, layers;
  std::int64_t elements;
};

class LlamaShape : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Presets, LlamaShape,
                         ::testing::Values(Shape{"smollm2-360m", 0, 290, 32, 361'821'120},
                                           Shape{"smollm2-360m", 5, 291, 32, 361'825'920},
                                           Shape{"smollm2-135m", 0, 272, 30, 134'515'008},
                                           Shape{"smollm2-135m", 5, 273, 30, 134'517'888},
                                           Shape{"tiny", 0, 20, 2, 108'864},
                                           Shape{"tiny", 3, 21, 2, 109'056}),
                         [](const auto& info) { return std::to_string(info.index); });

// As large as they are: without storage a model costs nothing but names.
TEST_P(LlamaShape, HasTheCountsOfThePublishedModelAndNoBytesYet) {
  const Shape& shape = GetParam();
  LlamaConfig config = preset(shape.preset);
  config.classes = shape.classes;
  const memory::Snapshot before = memory::snapshot();
  const DeferredStorage deferred;
  Llama model(config);
  const ParameterList list = list_parameters(model);
  EXPECT_EQ(memory::snapshot().total, before.total);
  EXPECT_EQ(list.size(), shape.tensors);
  EXPECT_EQ(list.numel(), shape.elements);
  EXPECT_EQ(list.numel(), config.parameters());
  EXPECT_EQ(list.bytes(), 4 * shape.elements);
  ASSERT_EQ(list.units.size(), 1 + shape.layers);
  EXPECT_EQ(list.units[0].name, "");
  for (std::size_t u = 1; u < list.units.size(); ++u) {
    EXPECT_EQ(list.units[u].name, "model.layers." + std::to_string(u - 1));
    EXPECT_EQ(list.units[u].parameters.size(), 9U);
  }
  for (const Parameter& p : list.parameters) {
    EXPECT_FALSE(memory::has_storage(p.tensor)) << p.name;
    EXPECT_TRUE(p.initializer.has_value()) << p.name;
  }
}

std::vector<std::string> described(const LlamaConfig& config) {
  const DeferredStorage deferred;
  Llama model(config);
  const ParameterList list = list_parameters(model);
  std::vector<std::string> lines;
  for (const Parameter& p : list.parameters) {
    std::string line = p.name;
    for (const std::int64_t size : p.tensor.sizes()) line += " " + std::to_string(size);
    lines.push_back(line + (p.unit == 0 ? " root" : ""));
  }
  return lines;
}

TEST(LlamaNames, AreThoseOfHuggingFaceInItsOrder) {
  LlamaConfig config = preset("smollm2-360m");
  config.layers = 1;
  EXPECT_THAT(described(config), ElementsAre("model.embed_tokens.weight 49152 960 root",
                                             "model.layers.0.self_attn.q_proj.weight 960 960",
                                             "model.layers.0.self_attn.k_proj.weight 320 960",
                                             "model.layers.0.self_attn.v_proj.weight 320 960",
                                             "model.layers.0.self_attn.o_proj.weight 960 960",
                                             "model.layers.0.mlp.gate_proj.weight 2560 960",
                                             "model.layers.0.mlp.up_proj.weight 2560 960",
                                             "model.layers.0.mlp.down_proj.weight 960 2560",
                                             "model.layers.0.input_layernorm.weight 960",
                                             "model.layers.0.post_attention_layernorm.weight 960",
                                             "model.norm.weight 960 root"));
  config.tied = false;
  EXPECT_EQ(described(config).back(), "lm_head.weight 49152 960 root");
  config.classes = 5;
  EXPECT_EQ(described(config).back(), "score.weight 5 960 root");
}

at::Tensor value(const LlamaConfig& config, const std::string& name) {
  Llama model(config);
  SeededValues values(3);
  initialize_parameters(model, values);
  return model.named_parameters()[name].detach().clone();
}

TEST(LlamaValues, OfOneNameDoNotDependOnTheRestOfTheModel) {
  LlamaConfig deeper = preset("tiny");
  deeper.layers = 5;
  deeper.classes = 4;
  for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"}) {
    EXPECT_TRUE(testing::identical(value(deeper, name), value(preset("tiny"), name)));
  }
  const at::Tensor projection = value(preset("tiny"), "model.layers.0.self_attn.q_proj.weight");
  EXPECT_NEAR(projection.std().item<double>(), 0.02, 0.002);
  EXPECT_TRUE(testing::identical(value(preset("tiny"), "model.norm.weight"), at::ones({64})));
}

struct Names : UnitHooks {
  explicit Names(Llama& model) : list(list_parameters(model)) { set_hooks(model, this); }
  void pre_forward(Unit& unit) override { say("+", unit); }
  void post_forward(Unit& unit) override { say("-", unit); }
  void pre_backward(Unit& unit) override { say("<", unit); }
  void post_backward(Unit& unit) override { say(">", unit); }
  void say(const char* what, const Unit& unit) {
    for (const UnitInfo& info : list.units) {
      if (info.unit == &unit) said.push_back(what + (info.name.empty() ? "root" : info.name));
    }
  }
  ParameterList list;
  std::vector<std::string> said;
};

TEST(LlamaHooks, RootIsAroundItsLayersInForwardAndFirstInBackward) {
  for (const bool checkpointed : {false, true}) {
    Llama model(preset("tiny"));
    SeededValues values(1);
    initialize_parameters(model, values);
    model.checkpoint_activations(checkpointed);
    Names hooks(model);
    data::Batch batch;
    batch.inputs = at::arange(8).view({2, 4});
    batch.targets = batch.inputs + 1;
    batch.loss_terms = 8;
    model.loss(batch).backward();
    EXPECT_THAT(hooks.said,
                ElementsAre("+root", "+model.layers.0", "-model.layers.0", "+model.layers.1",
                            "-model.layers.1", "-root", "<root", "<model.layers.1",
                            ">model.layers.1", "<model.layers.0", ">model.layers.0"));
  }
}

}  // namespace
}  // namespace zero::nn
