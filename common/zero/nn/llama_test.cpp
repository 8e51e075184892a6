// Llama beside the architecture written out in plain operations: shapes, logits, losses, gradients.

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <tests/support/tensors.hpp>
#include <tools/ladder/data/batch.hpp>
#include <tools/models/presets.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::identical;
using testing::longs;

// Odd on purpose: heads * head_size is not the hidden size, and epsilon and theta matter.
LlamaConfig small(std::int64_t classes = 0, bool tied = true) {
  return {.vocabulary = 11,
          .hidden = 10,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .mlp = 14,
          .rope_theta = 50.0,
          .norm_eps = 1e-2,
          .tied = tied,
          .initializer_range = 0.4,
          .classes = classes,
          .dtype = at::kDouble};
}

// A model and copies of its parameters, on which the plain form works.
struct LlamaPair {
  explicit LlamaPair(const LlamaConfig& config) : config(config), model(config) {
    SeededValues values(1);
    initialize_parameters(model, values);
    for (const auto& item : model.named_parameters()) {
      p[item.key()] = testing::leaf_of(item.value());
    }
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x / (x.square().mean(-1, true) + config.norm_eps).sqrt() * p.at(name + ".weight");
  }
  at::Tensor dense(const at::Tensor& x, const std::string& name) const {
    return x.matmul(p.at(name + ".weight").t());
  }
  at::Tensor turned(const at::Tensor& x) const {  // [B, S, heads, D]
    const std::int64_t half = config.head_size / 2;
    const at::Tensor angles =
        at::outer(at::arange(x.size(1), at::kDouble),
                  at::pow(config.rope_theta, at::arange(half, at::kDouble) * (-1.0 / half)));
    const at::Tensor c = angles.cos().unsqueeze(1), s = angles.sin().unsqueeze(1);
    const auto parts = x.chunk(2, -1);
    return at::cat({parts[0] * c - parts[1] * s, parts[1] * c + parts[0] * s}, -1);
  }
  at::Tensor attention(const at::Tensor& x, const std::string& path) const {
    const auto heads = [&](const std::string& name) {
      return dense(x, path + name).view({x.size(0), x.size(1), -1, config.head_size});
    };
    const at::Tensor mixed =
        testing::plain_attention(turned(heads("q_proj")), turned(heads("k_proj")), heads("v_proj"));
    return dense(mixed.flatten(2), path + "o_proj");
  }
  at::Tensor mlp(const at::Tensor& x, const std::string& path) const {
    const at::Tensor gate = dense(x, path + "gate_proj");
    return dense(gate * gate.sigmoid() * dense(x, path + "up_proj"), path + "down_proj");
  }
  at::Tensor hidden(const at::Tensor& ids) const {
    at::Tensor x = p.at("model.embed_tokens.weight").index({ids});
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const std::string path = "model.layers." + std::to_string(layer) + ".";
      x = x + attention(norm(x, path + "input_layernorm"), path + "self_attn.");
      x = x + mlp(norm(x, path + "post_attention_layernorm"), path + "mlp.");
    }
    return norm(x, "model.norm");
  }
  at::Tensor logits(const data::Batch& batch) const {
    const at::Tensor x = hidden(batch.inputs);
    if (config.classes == 0) {
      return dense(x, config.tied ? "model.embed_tokens" : "lm_head");
    }
    std::vector<at::Tensor> last;
    for (std::int64_t b = 0; b < x.size(0); ++b) {
      const std::int64_t length =
          batch.lengths.defined() ? batch.lengths[b].item<std::int64_t>() : x.size(1);
      last.push_back(x[b][length - 1]);
    }
    return dense(at::stack(last), "score");
  }
  at::Tensor loss(const data::Batch& batch) const {
    const at::Tensor all = logits(batch);
    const at::Tensor chances = all.log_softmax(-1).view({-1, all.size(-1)});
    const at::Tensor targets = batch.targets.flatten();
    at::Tensor sum = all.sum() * 0;
    for (std::int64_t i = 0; i < targets.size(0); ++i) {
      const auto target = targets[i].item<std::int64_t>();
      if (target != data::kIgnoredTarget) sum = sum - chances[i][target];
    }
    return sum / static_cast<double>(batch.loss_terms);
  }
  void expect_same(const data::Batch& batch) {
    EXPECT_TRUE(close_to(model.predict(batch.inputs, batch.lengths), logits(batch)));
    const at::Tensor ours = data::loss_of(model, batch), plain = loss(batch);
    EXPECT_TRUE(close_to(ours, plain));
    ours.backward();
    plain.backward();
    for (const auto& item : model.named_parameters()) {
      const at::Tensor expected = p.at(item.key()).grad();
      EXPECT_TRUE(close_to(item.value().grad(), expected)) << item.key();
      EXPECT_GT(expected.abs().max().item<double>(), 1e-6) << item.key();
    }
  }

  LlamaConfig config;
  Llama model;
  std::map<std::string, at::Tensor> p;
};

// Targets are the next token already; the second sample ends early.
data::Batch text() {
  data::Batch batch;
  const at::Tensor tokens = longs({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}).view({2, 6});
  batch.inputs = tokens.narrow(1, 0, 5);
  batch.targets = tokens.narrow(1, 1, 5).clone();
  batch.targets[1].narrow(0, 3, 2).fill_(data::kIgnoredTarget);
  batch.loss_terms = 8;
  return batch;
}

data::Batch reviews() {
  return {.inputs = longs({3, 1, 4, 1, 5, 9, 2, 0, 0, 0, 5, 0, 0, 0, 0}).view({3, 5}),
          .targets = longs({2, 0, 1}),
          .lengths = longs({5, 2, 1}),
          .loss_terms = 3};
}

TEST(Llama, IsThePlainOneWithItsGradientsAlsoWithCheckpointedLayers) {
  for (const bool checkpointed : {false, true}) {
    LlamaPair tied(small(0, /*tied=*/true)), untied(small(0, /*tied=*/false)), classifier(small(3));
    for (LlamaPair* pair : {&tied, &untied, &classifier}) {
      pair->model.checkpoint_activations(checkpointed);
      pair->expect_same(pair == &classifier ? reviews() : text());
    }
  }
}

TEST(Llama, ClassifierWithoutLengthsReadsTheLastTokenOfAll) {
  LlamaPair pair(small(/*classes=*/3));
  data::Batch batch = reviews(), whole = reviews();
  batch.lengths = at::Tensor();
  whole.lengths = longs({5, 5, 5});
  EXPECT_TRUE(identical(pair.model.predict(batch.inputs, batch.lengths),
                        pair.model.predict(whole.inputs, whole.lengths)));
  pair.expect_same(batch);
}

// A rank may have no sample in a step.
TEST(Llama, TakesABatchWithoutSamples) {
  LlamaPair pair(small());
  data::Batch batch = text();
  batch.inputs = batch.inputs.narrow(0, 0, 0);
  batch.targets = batch.targets.narrow(0, 0, 0);
  batch.loss_terms = 0;
  const at::Tensor loss = data::loss_of(pair.model, batch);
  EXPECT_EQ(loss.item<float>(), 0.0F);
  loss.backward();
}

// Rotary tables are made for each forward and go with it: model states are all that is resident.
TEST(Llama, KeepsNothingBesideItsParameters) {
  LlamaPair pair(small());
  EXPECT_TRUE(pair.model.buffers().empty());
  const data::Batch batch = text();
  const std::int64_t before = memory::snapshot().total;
  {
    const c10::NoGradGuard no_grad;
    pair.model.predict(batch.inputs, batch.lengths);
  }
  EXPECT_EQ(memory::snapshot().total, before);
  data::loss_of(pair.model, batch).backward();
  EXPECT_EQ(memory::snapshot().total - before, list_parameters(pair.model).bytes());  // gradients
}

TEST(Llama, SaysWhatABatchMustBe) {
  LlamaPair pair(small()), classifier(small(3));
  const auto message = [&](const std::function<void(data::Batch&)>& change) {
    data::Batch batch = text();
    change(batch);
    return error_of([&] { data::loss_of(pair.model, batch); });
  };
  EXPECT_EQ(message([](data::Batch&) {}), "");
  EXPECT_THAT(message([](auto& b) { b.inputs = at::Tensor(); }), HasSubstr("[samples, tokens]"));
  EXPECT_THAT(message([](auto& b) { b.inputs = b.inputs[0]; }), HasSubstr("[samples, tokens]"));
  EXPECT_THAT(message([](auto& b) { b.inputs = b.inputs.to(at::kInt); }), HasSubstr("int64"));
  EXPECT_THAT(message([](auto& b) { b.inputs = b.inputs + 5; }),
              HasSubstr("token ids from 6 to 11, but the model's vocabulary has 11"));
  EXPECT_THAT(message([](auto& b) { b.inputs = b.inputs - 2; }), HasSubstr("from -1 to"));
  EXPECT_THAT(message([](auto& b) { b.targets = at::Tensor(); }), HasSubstr("int64 [2, 5]"));
  EXPECT_THAT(message([](auto& b) { b.targets = b.targets[0]; }), HasSubstr("int64 [2, 5]"));
  EXPECT_THAT(message([](auto& b) { b.targets = b.targets + 20; }), HasSubstr("a target is"));
  EXPECT_THAT(message([](auto& b) { b.lengths = longs({5}); }), HasSubstr("2 samples but lengths"));
  expect_error([&] { data::loss_of(classifier.model, text()); }, {"one label"});
  expect_error([] { Llama({.heads = 4, .kv_heads = 3}); }, {"shared evenly"});
}

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
                                           Shape{"llama-20m", 0, 56, 6, 19'405'312},
                                           Shape{"tiny", 0, 20, 2, 108'864},
                                           Shape{"tiny", 3, 21, 2, 109'056}),
                         [](const auto& info) { return std::to_string(info.index); });

// As large as they are: without storage a model costs nothing but names.
TEST_P(LlamaShape, HasTheCountsOfThePublishedModelAndNoBytesYet) {
  const Shape& shape = GetParam();
  LlamaConfig config = tools::preset(shape.preset);
  config.classes = shape.classes;
  const memory::Snapshot before = memory::snapshot();
  const auto model = defer([&] { return std::make_shared<Llama>(config); });
  const ParameterList list = list_parameters(*model);
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
  const auto model = defer([&] { return std::make_shared<Llama>(config); });
  const ParameterList list = list_parameters(*model);
  std::vector<std::string> lines;
  for (const Parameter& p : list.parameters) {
    std::string line = p.name;
    for (const std::int64_t size : p.tensor.sizes()) line += " " + std::to_string(size);
    lines.push_back(line + (p.unit == 0 ? " root" : ""));
  }
  return lines;
}

TEST(LlamaNames, AreThoseOfHuggingFaceInItsOrder) {
  LlamaConfig config = tools::preset("smollm2-360m");
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

at::Tensor value(const std::string& name) {
  Llama model(tools::preset("tiny"));
  SeededValues values(3);
  initialize_parameters(model, values);
  return model.named_parameters()[name].detach().clone();
}

TEST(LlamaValues, AreThoseOfTheConfig) {
  EXPECT_NEAR(value("model.layers.0.self_attn.q_proj.weight").std().item<double>(), 0.02, 0.002);
  EXPECT_TRUE(testing::identical(value("model.norm.weight"), at::ones({64})));
}

}  // namespace
}  // namespace zero::nn
