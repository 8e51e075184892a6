#include "plain_modules.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <tools/models/mlp.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::testing {
namespace {

using torch::nn::Module;

template <typename Net>
PlainModule made(std::function<at::Tensor(Net&)> loss) {
  const auto net = std::make_shared<Net>();
  return {net, [net, loss] { return loss(*net); }};
}

// GPT-2 in small: odd vocabulary, a head that is the embedding. Of torch::nn::Module, and of units
// that call their hooks themselves, with the same names.
template <typename Base>
struct Block : Base {
  torch::nn::LayerNorm layer_norm(const char* name) {
    return this->register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
  }
  torch::nn::Linear linear(const char* name, int in, int out) {
    return this->register_module(name, torch::nn::Linear(in, out));
  }
  at::Tensor body(at::Tensor x) {
    const auto parts =
        qkv(norm1(x)).view({x.size(0), x.size(1), 2, 24}).transpose(1, 2).chunk(3, 3);
    const at::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return x + down(at::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1 = layer_norm("norm1");
  torch::nn::Linear qkv = linear("qkv", 16, 48), out = linear("out", 16, 16);
  torch::nn::LayerNorm norm2 = layer_norm("norm2");
  torch::nn::Linear up = linear("up", 16, 37), down = linear("down", 37, 16);
};

struct PlainBlock : Block<Module> {};
struct UnitBlock : Block<nn::Unit> {
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return body(x); });
  }
};

template <typename Base>
struct Gpt : Base {
  static constexpr std::int64_t kWords = 51;
  static constexpr int kBlocks = 3;
  // `units`: how many of its blocks are units, the last ones.
  explicit Gpt(bool checkpoints = false, int units = 0) : checkpoints(checkpoints) {
    tokens = this->register_module("tokens", torch::nn::Embedding(kWords, 16));
    places = this->register_parameter("places", at::randn({12, 16}) * 0.1);
    for (int i = 0; i < kBlocks; ++i) {
      if (i < kBlocks - units) blocks->push_back(std::make_shared<PlainBlock>());
      if (i >= kBlocks - units) blocks->push_back(std::make_shared<UnitBlock>());
    }
    this->register_module("blocks", blocks);
    norm = this->register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + places;
    for (const auto& block : *blocks) {
      if (auto* const unit = block->template as<UnitBlock>()) {
        x = unit->forward(x);
        continue;
      }
      auto& b = *block->template as<PlainBlock>();
      x = checkpoints ? nn::checkpoint([&b](const auto& in) { return b.body(in[0]); }, {x})
                      : b.body(x);
    }
    return at::linear(norm(x), tokens->weight);
  }
  at::Tensor loss_of_random_words() {
    const at::Tensor ids = at::randint(kWords, {2, 13}, at::kLong);
    const at::Tensor logits = forward(ids.narrow(1, 0, 12));
    return at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 12).flatten());
  }
  bool checkpoints;
  torch::nn::Embedding tokens{nullptr};
  at::Tensor places;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
};

PlainModule gpt(bool checkpoints, int units) {
  const auto net = std::make_shared<Gpt<Module>>(checkpoints, units);
  return {net, [net] { return net->loss_of_random_words(); }};
}

struct GptOfUnits : Gpt<nn::Unit> {
  GptOfUnits() : Gpt(/*checkpoints=*/false, /*units=*/kBlocks) {}
  at::Tensor loss() {
    return run([&] { return loss_of_random_words(); });
  }
};

PlainModule gpt_of_units() {
  const auto net = std::make_shared<GptOfUnits>();
  return {net, [net] { return net->loss(); }};
}

PlainModule mlp() {
  const auto net = std::make_shared<tools::Mlp>();
  nn::SeededValues values(5);
  nn::initialize_parameters(*net, values);
  const auto loss = [net] {
    const at::Tensor inputs = at::randn({4, 13});
    return net->loss(inputs, at::randn({4, 3}), /*terms=*/4);
  };
  return {net, loss, /*loss_terms=*/4};
}

PlainModule llama(const nn::LlamaConfig& config) {
  const auto net = std::make_shared<nn::Llama>(config);
  nn::SeededValues values(5);
  nn::initialize_parameters(*net, values);
  const auto loss = [net, config] {
    const at::Tensor ids = at::randint(config.vocabulary, {2, 9}, at::kLong);
    return net->loss(ids.narrow(1, 0, 8).contiguous(), ids.narrow(1, 1, 8).contiguous(),
                     /*terms=*/16);
  };
  return {net, loss, /*loss_terms=*/16};
}

// Of six layers, so that one unit is far less than the model.
PlainModule deep_llama() {
  nn::LlamaConfig config = tools::preset("tiny");
  config.layers = 6;
  return llama(config);
}

PlainModule transformer() {
  auto layer = torch::nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(20).dropout(0.1);
  const torch::nn::TransformerEncoder net(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayer(layer), /*num_layers=*/3));
  const auto module = net.ptr();
  return {module, [module] { return module->forward(at::randn({5, 2, 12})).square().mean(); }};
}

struct Lstm : Module {
  Lstm() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(7, 9).num_layers(2)));
    head = register_module("head", torch::nn::Linear(9, 5));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

at::Tensor lstm_loss(Lstm& net) {
  return net.head(std::get<0>(net.lstm(at::randn({6, 3, 7})))).square().mean();
}

torch::nn::Conv2d convolution(int in, int out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

struct ResidualBlock : Module {
  explicit ResidualBlock(int channels)
      : conv1(register_module("conv1", convolution(channels, channels))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(channels))),
        conv2(register_module("conv2", convolution(channels, channels))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(channels))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm1(conv1(x)).relu_();  // in place
    y = norm2(conv2(y));
    return y.add_(x).relu_();
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
};

struct ResNet : Module {
  ResNet()
      : stem(register_module("stem", convolution(3, 6))),
        blocks(
            register_module("blocks", torch::nn::Sequential(ResidualBlock(6), ResidualBlock(6)))),
        head(register_module("head", torch::nn::Linear(6, 10))) {}
  torch::nn::Conv2d stem;
  torch::nn::Sequential blocks;
  torch::nn::Linear head;
};

at::Tensor resnet_loss(ResNet& net) {
  const at::Tensor images = at::randn({2, 3, 8, 8});
  const at::Tensor x = net.blocks->forward(net.stem(images)).mean({2, 3});
  return at::cross_entropy_loss(net.head(x), at::randint(10, {2}, at::kLong));
}

struct Layers : Module {
  Layers() {
    for (const char* name : {"a", "b", "c"}) {
      layers.push_back(register_module(name, torch::nn::Linear(11, 11)));
    }
  }
  std::vector<torch::nn::Linear> layers;
};

at::Tensor used_twice_of(Layers& net) {
  at::Tensor x = at::randn({4, 11});
  for (const int i : {0, 1, 0, 2, 1}) x = net.layers[i](x).tanh();
  return x;
}

at::Tensor used_twice(Layers& net) { return used_twice_of(net).square().mean(); }

// A weight of one unit under a second name, of the root.
struct TiedToo : Layers {
  TiedToo() { again = register_parameter("again", layers[0]->weight); }
  at::Tensor again;
};

// A checkpoint around two units, one of which also runs outside of it. Inputs are moved along the
// gradient that comes through it.
at::Tensor checkpointed_units(Layers& net) {
  const auto both = [&net](const auto& in) { return net.layers[1](net.layers[0](in[0])).tanh(); };
  const auto loss = [&](const at::Tensor& inputs) {
    const at::Tensor x = nn::checkpoint(both, {net.layers[2](inputs).tanh()});
    return net.layers[2](net.layers[0](x).tanh()).square().mean();
  };
  const at::Tensor inputs = at::randn({4, 11}).requires_grad_();
  const at::Tensor slope = torch::autograd::grad({loss(inputs)}, {inputs})[0];
  return loss((inputs + 0.1 * slope.sign()).detach());
}

// Weights through views: a transpose, chunks, a slice, an expanded bias.
at::Tensor through_views(Layers& net) {
  at::Tensor x = at::randn({4, 11});
  const at::Tensor turned = net.layers[0]->weight.t();
  x = x.mm(turned).tanh_();
  const auto parts = net.layers[1]->weight.chunk(2, 0);
  x = at::cat({x.mm(parts[0].t()), x.mm(parts[1].t())}, 1).tanh_();
  x = x.mm(turned) + net.layers[2]->bias.expand({4, 11});
  return (x.narrow(1, 0, 5) * net.layers[2]->weight.narrow(0, 0, 1).narrow(1, 3, 5))
      .square()
      .mean();
}

struct WeightNorm : Module {
  WeightNorm() {
    for (const char* name : {"direction0", "direction1"}) {
      directions.push_back(register_parameter(name, at::randn({9, 9})));
    }
    lengths = register_parameter("lengths", at::ones({2, 9, 1}));
    last = register_module("last", torch::nn::Linear(9, 3));
  }
  std::vector<at::Tensor> directions;
  at::Tensor lengths;
  torch::nn::Linear last{nullptr};
};

at::Tensor weight_norm_loss(WeightNorm& net) {
  at::Tensor x = at::randn({4, 9});
  for (int i = 0; i < 2; ++i) {
    const at::Tensor& direction = net.directions[i];
    x = at::linear(x, net.lengths[i] * direction / direction.norm(2, {1}, /*keepdim=*/true)).tanh();
  }
  return net.last(x).square().mean();
}

at::Tensor with_penalty(Layers& net) {
  at::Tensor loss = used_twice(net);
  for (const at::Tensor& weight : net.parameters()) loss = loss + 0.01 * weight.square().sum();
  return loss;
}

// A function of the program's own, whose backward reads a weight that the graph does not show.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
  }
};

at::Tensor with_own_function(Layers& net) {
  at::Tensor x = at::randn({4, 11});
  for (auto& layer : net.layers) x = OwnProduct::apply(x, layer->weight).tanh() + layer->bias;
  return x.square().mean();
}

// The same, and no other operation of a unit announces its backward.
at::Tensor with_own_function_alone(Layers& net) {
  at::Tensor x = at::randn({4, 11});
  for (auto& layer : net.layers) x = OwnProduct::apply(x, layer->weight).tanh();
  return x.square().mean();
}

// The head is frozen, and a part is evaluated without a graph.
at::Tensor with_frozen(Layers& net) {
  for (at::Tensor& p : net.layers[2]->parameters()) p.requires_grad_(false);
  const at::Tensor x = at::randn({4, 11});
  at::Tensor target;
  {
    const at::NoGradGuard no_grad;
    target = net.layers[1](net.layers[0](x));
  }
  return (net.layers[2](net.layers[0](x)) - net.layers[1](target)).square().mean();
}

}  // namespace

std::vector<PlainCase> plain_cases() {
  return {{"gpt2", [] { return gpt(false, 0); }},
          {"gpt2_checkpointed", [] { return gpt(/*checkpoints=*/true, 0); }},
          {"gpt2_mixed", [] { return gpt(false, /*units=*/2); }},
          {"transformer_encoder", transformer},
          {"lstm", [] { return made<Lstm>(lstm_loss); }},
          {"resnet", [] { return made<ResNet>(resnet_loss); }},
          {"used_twice", [] { return made<Layers>(used_twice); }},
          {"tied",
           [] {
             return made<TiedToo>([](TiedToo& net) {
               return at::linear(used_twice_of(net), net.again).square().mean();
             });
           }},
          {"checkpointed_units", [] { return made<Layers>(checkpointed_units); }},
          {"views", [] { return made<Layers>(through_views); }},
          {"weight_norm", [] { return made<WeightNorm>(weight_norm_loss); }},
          {"penalty", [] { return made<Layers>(with_penalty); }},
          {"own_function", [] { return made<Layers>(with_own_function); }},
          {"own_function_alone", [] { return made<Layers>(with_own_function_alone); }},
          {"frozen", [] { return made<Layers>(with_frozen); }}};
}

std::vector<PlainCase> cases_of_units() {
  return {{"gpt2_of_units", gpt_of_units},
          {"mlp", mlp},
          {"llama", [] { return llama({.vocabulary = 31, .hidden = 16, .mlp = 21}); }},
          {"deep_llama", deep_llama}};
}

PlainCase plain_case(const std::string& name) {
  for (const auto& cases : {plain_cases(), cases_of_units()}) {
    for (const PlainCase& each : cases) {
      if (each.name == name) return each;
    }
  }
  throw std::invalid_argument("no such module: " + name);
}

}  // namespace zero::testing
