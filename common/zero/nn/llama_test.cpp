// Llama beside the architecture written out in plain operations: shapes, logits, losses, gradients.

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <cmath>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using ::testing::ElementsAre;
using testing::error_of;
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
struct Pair {
  explicit Pair(const LlamaConfig& config) : config(config), model(config) {
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
    const std::int64_t times = config.heads / config.kv_heads;
    const at::Tensor q = turned(heads("q_proj")).transpose(1, 2);
    const at::Tensor k =
        turned(heads("k_proj")).repeat_interleave(times, /*dim=*/2).transpose(1, 2);
    const at::Tensor v = heads("v_proj").repeat_interleave(times, /*dim=*/2).transpose(1, 2);
    const at::Tensor future = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const at::Tensor scores =
        q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(config.head_size));
    const at::Tensor mixed = scores.masked_fill(future, -1e300).softmax(-1).matmul(v);
    return dense(mixed.transpose(1, 2).flatten(2), path + "o_proj");
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
    EXPECT_TRUE(close_to(model.predict(batch), logits(batch)));
    const at::Tensor ours = model.loss(batch), plain = loss(batch);
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
  data::Batch batch;
  batch.inputs = longs({3, 1, 4, 1, 5, 9, 2, 0, 0, 0, 5, 0, 0, 0, 0}).view({3, 5});
  batch.targets = longs({2, 0, 1});
  batch.lengths = longs({5, 2, 1});
  batch.loss_terms = 3;
  return batch;
}

TEST(Llama, LanguageModelIsThePlainOneWithItsGradients) {
  Pair(small(0, /*tied=*/true)).expect_same(text());
  Pair(small(0, /*tied=*/false)).expect_same(text());
}

TEST(Llama, ClassifierReadsTheLastTokenThatIsNotPadding) {
  Pair pair(small(/*classes=*/3));
  pair.expect_same(reviews());
  // What padding holds does not matter, to the last bit.
  data::Batch other = reviews();
  other.inputs[1].narrow(0, 2, 3).fill_(7);
  other.inputs[2].narrow(0, 1, 4).fill_(10);
  EXPECT_TRUE(identical(pair.model.predict(other), pair.model.predict(reviews())));
  // The last token does.
  other.inputs[1][1] = 8;
  EXPECT_FALSE(close_to(pair.model.predict(other), pair.model.predict(reviews()), 1e-4));
}

TEST(Llama, ClassifierWithoutLengthsReadsTheLastTokenOfAll) {
  Pair pair(small(/*classes=*/3));
  data::Batch batch = reviews(), whole = reviews();
  batch.lengths = at::Tensor();
  whole.lengths = longs({5, 5, 5});
  EXPECT_TRUE(identical(pair.model.predict(batch), pair.model.predict(whole)));
  pair.expect_same(batch);
}

TEST(Llama, NoTokenSeesTheFuture) {
  Pair pair(small());
  data::Batch batch = text();
  const at::Tensor before = pair.model.predict(batch).narrow(1, 0, 3).clone();
  batch.inputs = batch.inputs.clone();
  batch.inputs.narrow(1, 3, 2).fill_(0);
  EXPECT_TRUE(identical(pair.model.predict(batch).narrow(1, 0, 3), before));
}

TEST(Llama, FrozenParametersGetNoGradientAndChangeNoOther) {
  Pair all(small()), some(small());
  for (auto& item : some.model.named_parameters()) {
    if (item.key().find("layers.0.") != std::string::npos || item.key() == "model.norm.weight") {
      item.value().requires_grad_(false);
    }
  }
  all.model.loss(text()).backward();
  some.model.loss(text()).backward();
  for (const auto& item : some.model.named_parameters()) {
    const at::Tensor expected = all.model.named_parameters()[item.key()].grad();
    EXPECT_TRUE(
        identical(item.value().grad(), item.value().requires_grad() ? expected : at::Tensor()))
        << item.key();
  }
}

TEST(Llama, HalfTypesGiveHalfLogitsAndALossInFloat) {
  LlamaConfig config = preset("tiny");
  config.dtype = at::kBFloat16;
  Llama model(config);
  SeededValues values(1);
  initialize_parameters(model, values);
  EXPECT_EQ(model.predict(text()).scalar_type(), at::kBFloat16);
  const at::Tensor loss = model.loss(text());
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  for (const at::Tensor& p : model.parameters()) {
    EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(p.grad().isfinite().all().item<bool>());
  }
}

// A model that knows nothing yet gives every token the same chance.
TEST(Llama, FirstLossIsThatOfAGuess) {
  Llama model(preset("tiny"));
  SeededValues values(42);
  initialize_parameters(model, values);
  data::Batch batch;
  batch.inputs = at::arange(255).view({1, 255});
  batch.targets = batch.inputs + 1;
  batch.loss_terms = 255;
  EXPECT_NEAR(model.loss(batch).item<double>(), std::log(256.0), 0.2);
}

// Rotary tables are made for each forward and go with it: model states are all that is resident.
TEST(Llama, KeepsNothingBesideItsParameters) {
  Pair pair(small());
  EXPECT_TRUE(pair.model.buffers().empty());
  const data::Batch batch = text();
  const std::int64_t before = memory::snapshot().total;
  {
    const c10::NoGradGuard no_grad;
    pair.model.predict(batch);
  }
  EXPECT_EQ(memory::snapshot().total, before);
  pair.model.loss(batch).backward();
  EXPECT_EQ(memory::snapshot().total - before, list_parameters(pair.model).bytes());  // gradients
}

TEST(Llama, SaysWhatABatchMustBe) {
  Pair pair(small()), classifier(small(3));
  const auto message = [&](const std::function<void(data::Batch&)>& change) {
    data::Batch batch = text();
    change(batch);
    return error_of([&] { pair.model.loss(batch); });
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
  EXPECT_THAT(error_of([&] { classifier.model.loss(text()); }), HasSubstr("one label"));
  EXPECT_THAT(error_of([] { Llama({.heads = 4, .kv_heads = 3}); }), HasSubstr("shared evenly"));
}

}  // namespace
}  // namespace zero::nn
