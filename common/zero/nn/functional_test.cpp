// The operations with backward functions of their own, beside the same operations of LibTorch under
// ordinary autograd.

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/attention.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using testing::expect_error;
using testing::identical;
using testing::leaf_of;
using testing::random;

using Arguments = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Arguments&)>;

// One of our operations and how it would be written without them.
struct Pair {
  std::string name;
  Operation ours, plain;
  std::vector<std::vector<std::int64_t>> shapes;  // of the arguments
};

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, /*keepdim=*/true) + eps).sqrt() * weight;
}

const at::Tensor& ids() {
  static const at::Tensor all = testing::longs({5, 0, 5, 2, 5, 2}).view({2, 3});
  return all;
}

const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all = {
      {"linear",
       [](const auto& a) { return nn::linear(a[0], a[1]); },
       [](const auto& a) { return a[0].matmul(a[1].t()); },
       {{2, 3, 5}, {7, 5}}},
      {"linear_with_bias",
       [](const auto& a) { return nn::linear(a[0], a[1], a[2]); },
       [](const auto& a) { return a[0].matmul(a[1].t()) + a[2]; },
       {{2, 3, 5}, {7, 5}, {7}}},
      {"linear_of_one_row",
       [](const auto& a) { return nn::linear(a[0], a[1], a[2]); },
       [](const auto& a) { return a[0].matmul(a[1].t()) + a[2]; },
       {{1, 5}, {7, 5}, {7}}},
      {"embedding",
       [](const auto& a) { return nn::embedding(ids(), a[0]); },
       [](const auto& a) { return a[0].index({ids()}); },
       {{6, 4}}},
      {"rms_norm",
       [](const auto& a) { return nn::rms_norm(a[0], a[1], 1e-3); },
       [](const auto& a) { return plain_rms_norm(a[0], a[1], 1e-3); },
       {{2, 3, 5}, {5}}},
      {"swiglu",
       [](const auto& a) { return nn::swiglu(a[0], a[1]); },
       [](const auto& a) { return a[0] * a[0].sigmoid() * a[1]; },
       {{2, 3, 5}, {2, 3, 5}}},
      {"linear_twice",
       [](const auto& a) { return nn::linear(nn::linear(a[0], a[1]), a[1]); },
       [](const auto& a) { return a[0].matmul(a[1].t()).matmul(a[1].t()); },
       {{3, 5}, {5, 5}}},
      {"norm_twice",
       [](const auto& a) { return nn::rms_norm(nn::rms_norm(a[0], a[1], 1e-3), a[1], 1e-3); },
       [](const auto& a) { return plain_rms_norm(plain_rms_norm(a[0], a[1], 1e-3), a[1], 1e-3); },
       {{3, 5}, {5}}},
      {"tied_embedding",
       [](const auto& a) { return nn::linear(nn::embedding(ids(), a[0]).tanh(), a[0]); },
       [](const auto& a) { return a[0].index({ids()}).tanh().matmul(a[0].t()); },
       {{6, 4}}},
      {"parameter_also_used_by_ordinary_autograd",
       [](const auto& a) { return nn::linear(a[0], a[1]) + a[1].square().sum(); },
       [](const auto& a) { return a[0].matmul(a[1].t()) + a[1].square().sum(); },
       {{3, 5}, {5, 5}}},
  };
  return all;
}

class Functional : public ::testing::TestWithParam<Pair> {
 protected:
  static Arguments arguments() {
    Arguments all;
    for (const auto& shape : GetParam().shapes) {
      all.push_back(random(shape, 10 + all.size(), /*gradient=*/true));
    }
    return all;
  }
  static Arguments leaves_of(const Arguments& arguments) {
    Arguments all;
    for (const at::Tensor& a : arguments) all.push_back(leaf_of(a));
    return all;
  }
  // A scalar through which every element has a gradient of its own.
  static at::Tensor scalar(const at::Tensor& y) { return (y * random(y.sizes(), 99)).sum(); }
};
INSTANTIATE_TEST_SUITE_P(All, Functional, ::testing::ValuesIn(pairs()),
                         [](const auto& info) { return info.param.name; });

// A second gradient and a third are added to the first, which does not move.
TEST_P(Functional, ResultAndGradientsAreThoseOfThePlainForm) {
  const Arguments ours = arguments(), plain = leaves_of(ours);
  std::vector<const void*> where;
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor a = GetParam().ours(ours), b = GetParam().plain(plain);
    EXPECT_TRUE(close_to(a, b));
    scalar(a).backward();
    scalar(b).backward();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(close_to(ours[i].grad(), plain[i].grad())) << "argument " << i;
      where.push_back(ours[i].grad().const_data_ptr());
      EXPECT_EQ(where.back(), where[i]);
    }
  }
}

// One argument after the other is frozen: it gets no gradient, and the others' do not change.
TEST_P(Functional, FrozenArgumentsGetNoGradient) {
  for (std::size_t frozen = 0; frozen < GetParam().shapes.size(); ++frozen) {
    const Arguments all = arguments(), some = leaves_of(all);
    some[frozen].requires_grad_(false);
    scalar(GetParam().ours(all)).backward();
    const at::Tensor y = GetParam().ours(some);
    ASSERT_EQ(y.requires_grad(), some.size() > 1);
    if (y.requires_grad()) scalar(y).backward();
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(identical(some[i].grad(), i == frozen ? at::Tensor() : all[i].grad())) << i;
    }
  }
}

TEST_P(Functional, CannotBeDifferentiatedTwice) {
  const Arguments all = arguments();
  const at::Tensor y = scalar(GetParam().ours(all));
  expect_error(
      [&] {
        torch::autograd::grad({y}, all, {}, /*retain_graph=*/true, /*create_graph=*/true,
                              /*allow_unused=*/true);
      },
      {"cannot be differentiated twice"});
}

TEST_P(Functional, KeepsTheDtype) {
  Arguments all;
  for (const at::Tensor& a : arguments()) {
    all.push_back(a.detach().to(at::kBFloat16).requires_grad_(true));
  }
  const at::Tensor y = GetParam().ours(all);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  for (const at::Tensor& a : all) EXPECT_EQ(a.grad().scalar_type(), at::kBFloat16);
}

TEST(FunctionalBits, SwigluAndLinearAreTheSameOperationsInFloat) {
  const auto expect_same = [](at::IntArrayRef sizes, auto ours, auto plain) {
    const at::Tensor a = random({4, 9}, 1, true, at::kFloat),
                     b = random(sizes, 2, true, at::kFloat);
    const at::Tensor c = leaf_of(a), d = leaf_of(b), y = ours(a, b), z = plain(c, d);
    EXPECT_TRUE(identical(y, z));
    y.square().sum().backward();
    z.square().sum().backward();
    EXPECT_TRUE(identical(a.grad(), c.grad()));
    EXPECT_TRUE(identical(b.grad(), d.grad()));
  };
  using T = const at::Tensor&;
  expect_same(
      {4, 9}, [](T a, T b) { return nn::swiglu(a, b); }, [](T a, T b) { return at::silu(a) * b; });
  expect_same(
      {5, 9}, [](T x, T w) { return nn::linear(x, w); }, [](T x, T w) { return at::linear(x, w); });
}

// As transformers' LlamaRMSNorm: fp32 inside, one rounding, then the product with the weight.
TEST(RmsNormFunction, NormalisesHalfTypesInFloat) {
  const at::Tensor x = random({3, 64}, 1, true, at::kBFloat16);
  const at::Tensor weight = random({64}, 2, true, at::kBFloat16);
  const at::Tensor v = leaf_of(x), u = leaf_of(weight);
  const at::Tensor ours = nn::rms_norm(x, weight, 1e-5);
  const at::Tensor wide = v.to(at::kFloat);
  const at::Tensor plain =
      (wide * (wide.square().mean(-1, true) + 1e-5).rsqrt()).to(at::kBFloat16) * u;
  EXPECT_TRUE(identical(ours, plain));
  ours.sum().backward();
  plain.sum().backward();
  EXPECT_TRUE(close_to(x.grad(), v.grad(), 2e-2));
  EXPECT_TRUE(close_to(weight.grad(), u.grad(), 2e-2));
}

TEST(RmsNormFunction, EpsilonKeepsARowOfZerosFinite) {
  const at::Tensor x = at::zeros({2, 4}, at::kDouble).requires_grad_(true);
  const at::Tensor weight = random({4}, 2, true);
  const at::Tensor y = nn::rms_norm(x, weight, 1e-5);
  EXPECT_TRUE(identical(y, at::zeros({2, 4}, at::kDouble)));
  y.sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(EmbeddingFunction, TakesIdsOfAnyShapeAndRefusesThoseOutside) {
  const at::Tensor weight = random({6, 4}, 1, true);
  EXPECT_EQ(nn::embedding(testing::longs({1, 2, 3, 4}).view({2, 1, 2}), weight).sizes(),
            at::IntArrayRef({2, 1, 2, 4}));
  EXPECT_TRUE(identical(nn::embedding(at::scalar_tensor(5, at::kLong), weight).detach(),
                        weight[5].detach()));
  EXPECT_EQ(nn::embedding(at::empty({0, 3}, at::kLong), weight).sizes(),
            at::IntArrayRef({0, 3, 4}));
  EXPECT_THROW(nn::embedding(testing::longs({6}), weight), c10::IndexError);
  EXPECT_THROW(nn::embedding(testing::longs({-1}), weight), c10::IndexError);
}

// Head and embedding in one gradient: ordinary autograd would hold one for each and their sum.
TEST(EmbeddingFunction, TiedToAHeadThereIsOneGradient) {
  const at::Tensor weight = random({5000, 16}, 1, true, at::kFloat);
  const auto bytes = static_cast<std::int64_t>(weight.nbytes());
  const at::Tensor few = testing::longs({1, 4999, 1});
  const at::Tensor y = nn::linear(nn::embedding(few, weight), weight).square().sum();
  int calls = 0;
  on_gradient_ready(weight, [&] { ++calls; });
  const memory::Snapshot before = memory::snapshot();
  memory::reset_peaks();
  y.backward();
  const memory::Snapshot after = memory::snapshot();
  EXPECT_EQ(after[memory::Category::kGradients] - before[memory::Category::kGradients], bytes);
  EXPECT_LT(after.total_peak - before.total, 2 * bytes);
  EXPECT_EQ(calls, 1);
}

TEST(FunctionalGradients, OfParametersGoToGradOnly) {
  const at::Tensor x = random({3, 5}, 1, true), weight = random({4, 5}, 2, true);
  const auto to_input = torch::autograd::grad({nn::linear(x, weight).sum()}, {x});
  EXPECT_TRUE(to_input.front().defined());
  EXPECT_FALSE(weight.grad().defined());
  const auto to_weight = torch::autograd::grad({nn::linear(x, weight).sum()}, {weight}, {},
                                               std::nullopt, false, /*allow_unused=*/true);
  EXPECT_FALSE(to_weight.front().defined());
}

// One call a pass with the sum of all uses, and what it returns is added. So do weights that are no
// leaves get a gradient.
TEST(FunctionalGradients, GoThroughTheHooksOfParameters) {
  const at::Tensor ids = testing::longs({1, 3, 1});
  struct Weights {
    at::Tensor tied = random({5, 4}, 1, true), bias = random({5}, 2, true);
    at::Tensor norm = random({4}, 3, true), change = random({5, 4}, 4, true);
    std::vector<at::Tensor> all() const { return {tied, bias, norm, change}; }
  } ours, plain;
  std::vector<at::Tensor> seen;
  for (const Weights& w : {ours, plain}) {
    for (const at::Tensor& p : w.all()) {
      if (p.is_same(w.change)) continue;
      p.register_hook([&seen](const at::Tensor& gradient) {
        seen.push_back(gradient.clone());
        return gradient.clamp(-1, 1);
      });
    }
  }
  for (int pass = 1; pass <= 2; ++pass) {
    const at::Tensor x = nn::rms_norm(nn::embedding(ids, ours.tied), ours.norm, 1e-5);
    const at::Tensor y = nn::linear(x, ours.tied + ours.change, ours.bias);
    (nn::linear(x, ours.tied) + y).square().sum().backward();
    const at::Tensor v = plain.tied.index_select(0, ids);
    const at::Tensor u = plain.norm * (v * (v.square().mean(-1, true) + 1e-5).rsqrt());
    (at::linear(u, plain.tied) + at::linear(u, plain.tied + plain.change, plain.bias))
        .square()
        .sum()
        .backward();
    ASSERT_EQ(seen.size(), 6U * pass);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(close_to(ours.all()[i].grad(), plain.all()[i].grad())) << i;
  }
}

// Rotary positions by themselves, and grouped-query attention beside its textbook form.
constexpr double kTheta = 100000.0;

// What the angles are, llama_test.cpp checks.
TEST(Rotary, GradientIsTheRotationBack) {
  const RotaryTable table = rotary_table(7, 8, kTheta, at::kDouble);
  const at::Tensor x = random({2, 7, 3, 8}, 1, true), gradient = random({2, 7, 3, 8}, 2);
  rotate(x, table).backward(gradient);
  EXPECT_TRUE(close_to(rotate(x.grad(), table), gradient));
}

TEST(Rotary, CannotBeDifferentiatedTwice) {
  const at::Tensor x = random({1, 2, 1, 4}, 1, true);
  const at::Tensor y = rotate(x, rotary_table(2, 4, kTheta, at::kDouble)).sum();
  expect_error([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); },
               {"'rotate' cannot be differentiated twice"});
}

// Far positions have large angles, of which half types know nothing: the table is made in float.
TEST(Rotary, HalfTablesAreRoundedOnceAtTheEnd) {
  const RotaryTable wide = rotary_table(3000, 8, kTheta, at::kFloat);
  const RotaryTable narrow = rotary_table(3000, 8, kTheta, at::kBFloat16);
  EXPECT_TRUE(identical(narrow.cosine, wide.cosine.to(at::kBFloat16)));
  EXPECT_TRUE(identical(narrow.sine, wide.sine.to(at::kBFloat16)));
  const RotaryTable exact = rotary_table(3000, 8, kTheta, at::kDouble);
  EXPECT_TRUE(close_to(wide.cosine.to(at::kDouble), exact.cosine, 1e-3));
}

TEST(Attention, GroupedHeadsAreThoseOfThePlainForm) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {4, 2}, {6, 2}, {3, 1}}) {
    SCOPED_TRACE(fmt::format("{} over {}", heads, kv_heads));
    const at::Tensor q = random({2, 5, heads, 4}, 1, true);
    const at::Tensor k = random({2, 5, kv_heads, 4}, 2, true);
    const at::Tensor v = random({2, 5, kv_heads, 4}, 3, true);
    const at::Tensor a = leaf_of(q), b = leaf_of(k), c = leaf_of(v);
    const at::Tensor ours = causal_attention(q, k, v), plain = testing::plain_attention(a, b, c);
    EXPECT_TRUE(close_to(ours, plain));
    const at::Tensor gradient = random(ours.sizes(), 4);
    ours.backward(gradient);
    plain.backward(gradient);
    EXPECT_TRUE(close_to(q.grad(), a.grad()));
    EXPECT_TRUE(close_to(k.grad(), b.grad()));
    EXPECT_TRUE(close_to(v.grad(), c.grad()));
  }
}

// Its gradient, which nobody asked for, would be one that the next update uses.
TEST_P(Functional, AnArgumentThatIsFrozenSinceItsForwardGetsNoGradient) {
  for (const Operation& operation : {GetParam().ours, GetParam().plain}) {
    for (std::size_t frozen = 0; frozen < GetParam().shapes.size(); ++frozen) {
      const Arguments all = arguments();
      const at::Tensor sum = operation(all).sum();
      all[frozen].requires_grad_(false);
      sum.backward();
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].grad().defined(), i != frozen) << i << ", frozen " << frozen;
      }
    }
  }
}

}  // namespace
}  // namespace zero::nn
