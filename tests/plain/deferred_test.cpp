// Plain modules that are built without values (nn::defer) and get them from a source.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/engine.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/layers.hpp>

#include "plain_modules.hpp"

namespace zero::testing {
namespace {

// Values by name.
struct ByName final : nn::ParameterSource {
  void fill(const nn::Parameter& parameter, at::Tensor& out) override {
    at::Generator generator = at::detail::createCPUGenerator(base::fnv1a(parameter.name));
    memory::raw(out).normal_(0, 0.2, generator);
  }
};

struct Trained {
  std::vector<at::Tensor> weights, buffers;
};

Trained trained(dist::Communicator& communicator, const PlainCase& plain, int stage, bool defers) {
  ByName values;
  PlainModule made;
  const auto make = [&] {
    made = plain.make();
    return made.module;
  };
  if (defers) {
    nn::defer(make);
  } else {
    nn::initialize_parameters(*make(), values);
  }
  Engine engine(*made.module, communicator, optim::adamw({.learning_rate = 0.01}), {.stage = stage},
                plain.units, &values);
  for (int number = 0; number < 3; ++number) {
    at::manual_seed(100 * number + communicator.rank());
    engine.backward(engine.forward(made.loss));
    engine.step();
  }
  return {whole_weights(engine.strategy()), made.module->buffers()};
}

class Deferred : public ::testing::TestWithParam<PlainCase> {};

TEST_P(Deferred, TrainsAsTheModuleThatWasBuiltWithValues) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    on_all_stages(ranks, [](dist::Communicator& communicator, int stage) {
      const Trained whole = trained(communicator, GetParam(), stage, /*defers=*/false);
      const Trained deferred = trained(communicator, GetParam(), stage, /*defers=*/true);
      EXPECT_TRUE(same_bits(deferred.weights, whole.weights));
      EXPECT_TRUE(same_bits(deferred.buffers, whole.buffers));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Deferred, ::testing::ValuesIn(plain_cases()),
                         [](const auto& info) { return info.param.name; });

// A parameter of each kind: uninitialised and then drawn, made from values, tied, frozen, of one of
// the library's layers. And buffers, one of which a number of the constructor decides.
struct Everything : torch::nn::Module {
  static constexpr std::int64_t kWidth = 256;
  Everything() {
    words = register_module("words", torch::nn::Embedding(kWidth, kWidth));
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    register_parameter("scale", at::ones({kWidth, kWidth}) * 0.5);
    register_parameter("words_again", words->weight);
    register_parameter("fixed", at::ones({kWidth}), /*requires_grad=*/false);
    own = register_module("own",
                          std::make_shared<nn::Linear>(kWidth, kWidth, nn::Initializer::normal(1)));
    register_module("norm", torch::nn::BatchNorm1d(kWidth));
    register_buffer("mask", at::arange(16).unsqueeze(1) >= at::arange(16));
    const auto rate = at::linspace(0, 1, 5)[3].item<double>();
    register_buffer("rates", at::full({3}, rate).cumsum(0));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList layers;
  std::shared_ptr<nn::Linear> own;
};

std::int64_t bytes_of(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const at::Tensor& p : module.parameters()) bytes += static_cast<std::int64_t>(p.nbytes());
  return bytes;
}

TEST(DeferredConstruction, HoldsOneParameterAndThenTheShardsAndOneUnit) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      memory::reset_peaks();
      const std::int64_t before = memory::snapshot().total;
      const auto net = nn::defer([] { return std::make_shared<Everything>(); });
      constexpr std::int64_t kLargest = 4 * Everything::kWidth * Everything::kWidth;
      constexpr std::int64_t kBuffers = 16 * 16 + 4096;  // and what is smaller
      // "scale" is a product: both of its factors are there once.
      EXPECT_LE(memory::snapshot().total_peak - before, 2 * kLargest + kBuffers);
      EXPECT_LE(memory::snapshot().total - before, kBuffers);
      memory::reset_peaks();
      ByName values;
      const Engine engine(*net, communicator, optim::adamw(), {.stage = 3},
                          nn::default_units(/*bytes=*/1), &values);
      const std::int64_t shards = bytes_of(*net) / communicator.size();
      const std::int64_t unit = 2 * kLargest;  // the root: words and scale
      EXPECT_LE(memory::snapshot().total_peak - before, shards + unit + kLargest / 8 + kBuffers);
    });
  }
}

TEST(DeferredConstruction, LeavesBuffersAndNamesAsTheyAre) {
  const Everything whole;
  const auto deferred = nn::defer([] { return std::make_shared<Everything>(); });
  EXPECT_TRUE(same_bits(deferred->buffers(), whole.buffers()));
  const auto expected = whole.named_parameters();
  const auto parameters = deferred->named_parameters();
  ASSERT_EQ(parameters.keys(), expected.keys());
  for (const auto& p : parameters) {
    EXPECT_TRUE(memory::is_released(p.value())) << p.key();
    EXPECT_EQ(p.value().sizes(), expected[p.key()].sizes()) << p.key();
    EXPECT_EQ(p.value().requires_grad(), expected[p.key()].requires_grad()) << p.key();
  }
}

TEST(DeferredConstruction, CastsParametersWithoutValues) {
  const auto net = nn::defer([] {
    auto made = std::make_shared<Everything>();
    made->layers->to(at::kBFloat16);
    return made;
  });
  const at::Tensor weight = net->layers->parameters()[0];
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(memory::is_released(weight));
}

struct Given : torch::nn::Module {
  explicit Given(const std::function<void(Given&)>& rest) {
    weight = register_parameter("weight", at::ones({4}));
    rest(*this);
  }
  at::Tensor weight;
};

TEST(DeferredConstruction, RefusesByNameWhatNeedsValues) {
  const auto build = [](const std::function<void(Given&)>& rest) {
    nn::defer([&] { return std::make_shared<Given>(rest); });
  };
  const auto refused = [&](const std::function<void(Given&)>& rest,
                           const std::vector<std::string>& words) {
    expect_error([&] { build(rest); }, words);
  };
  refused([](Given& net) { net.weight.sum().item<float>(); }, {"aten::item", "defer()"});
  refused([](Given& net) { at::zeros({4}).copy_(net.weight); }, {"aten::copy_"});
  refused([](Given& net) { net.register_buffer("first", net.weight.detach().clone()); },
          {"'first'", "computed from a parameter"});
  refused([](Given& net) { net.register_buffer("noise", at::randn({4}) * 2); },
          {"'noise'", "at random"});
  refused([](Given& net) { net.weight.view({3}); }, {"aten::view", "invalid for input"});
  refused([&](Given&) { build([](Given&) {}); }, {"inside another"});
  build([](Given& net) { net.register_parameter("norm", net.weight.norm().detach()); });
  build([](Given& net) { net.weight.narrow(0, 0, 2).zero_(); });
}

TEST(DeferredConstruction, ConcernsNoOtherTensorAndEndsWithTheFunction) {
  const at::Tensor outside = at::ones({4}).requires_grad_(true);
  const auto net = nn::defer([&] {
    EXPECT_EQ(outside.sum().item<float>(), 4);
    return std::make_shared<Given>([](Given&) {});
  });
  expect_error([] { nn::defer([]() -> std::shared_ptr<Given> { throw Error("no"); }); }, {"no"});
  const at::Tensor after = at::ones({4}).requires_grad_(true);
  EXPECT_EQ((after + outside).sum().item<float>(), 8);
}

}  // namespace
}  // namespace zero::testing
