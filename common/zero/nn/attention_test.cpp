// Rotary positions and grouped-query attention, beside their textbook forms.

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/attention.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using testing::error_of;
using ::testing::HasSubstr;
using testing::identical;
using testing::leaf_of;
using testing::random;

constexpr double kTheta = 100000.0;

// Element by element, in double.
at::Tensor plain_rotation(const at::Tensor& x, double theta) {
  const at::Tensor out = at::empty(x.sizes(), x.options());
  const auto in = x.accessor<double, 4>();
  auto to = out.accessor<double, 4>();
  const std::int64_t half = x.size(3) / 2;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t s = 0; s < x.size(1); ++s) {
      for (std::int64_t h = 0; h < x.size(2); ++h) {
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(s) *
              std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(2 * half));
          const double first = in[b][s][h][i], second = in[b][s][h][i + half];
          to[b][s][h][i] = first * std::cos(angle) - second * std::sin(angle);
          to[b][s][h][i + half] = second * std::cos(angle) + first * std::sin(angle);
        }
      }
    }
  }
  return out;
}

TEST(Rotary, TurnsPairsByTheAngleOfTheirPosition) {
  const at::Tensor x = random({2, 7, 3, 8}, 1);
  EXPECT_TRUE(
      close_to(rotate(x, rotary_table(7, 8, kTheta, at::kDouble)), plain_rotation(x, kTheta)));
}

TEST(Rotary, TableMayBeLongerThanTheText) {
  const at::Tensor x = random({1, 5, 2, 8}, 1);
  EXPECT_TRUE(identical(rotate(x, rotary_table(50, 8, kTheta, at::kDouble)),
                        rotate(x, rotary_table(5, 8, kTheta, at::kDouble))));
}

// The reason to use it: scores of rotated vectors know how far apart they are, not where.
TEST(Rotary, ProductsDependOnTheDistanceOnly) {
  const at::Tensor q = random({1, 1, 1, 8}, 1).expand({1, 20, 1, 8}).contiguous();
  const at::Tensor k = random({1, 1, 1, 8}, 2).expand({1, 20, 1, 8}).contiguous();
  const RotaryTable table = rotary_table(20, 8, kTheta, at::kDouble);
  const at::Tensor scores =
      rotate(q, table).view({20, 8}).matmul(rotate(k, table).view({20, 8}).t());
  for (const std::int64_t distance : {0, 3, 11}) {
    const at::Tensor along = scores.diagonal(distance);
    EXPECT_TRUE(close_to(along, along[0].expand_as(along)));
  }
  EXPECT_FALSE(close_to(scores[0][0], scores[0][3], 1e-3));
}

TEST(Rotary, GradientIsTheRotationBack) {
  const RotaryTable table = rotary_table(7, 8, kTheta, at::kDouble);
  const at::Tensor x = random({2, 7, 3, 8}, 1, true), gradient = random({2, 7, 3, 8}, 2);
  const at::Tensor y = rotate(x, table);
  y.backward(gradient);
  EXPECT_TRUE(close_to(rotate(x.grad(), table), gradient));
  // The same by autograd over the plain operations.
  const at::Tensor v = leaf_of(x);
  const at::Tensor c = table.cosine.unsqueeze(1), s = table.sine.unsqueeze(1);
  const auto half = v.chunk(2, -1);
  at::cat({half[0] * c - half[1] * s, half[1] * c + half[0] * s}, -1).backward(gradient);
  EXPECT_TRUE(close_to(x.grad(), v.grad()));
}

TEST(Rotary, CannotBeDifferentiatedTwice) {
  const at::Tensor x = random({1, 2, 1, 4}, 1, true);
  const at::Tensor y = rotate(x, rotary_table(2, 4, kTheta, at::kDouble)).sum();
  EXPECT_THAT(error_of([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }),
              HasSubstr("'rotate' cannot be differentiated twice"));
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

TEST(Rotary, TableKnowsItsSizeAndIsNoModelState) {
  EXPECT_EQ(RotaryTable{}.length(), 0);
  EXPECT_EQ(RotaryTable{}.bytes(), 0);
  const memory::Snapshot before = memory::snapshot();
  const memory::Charge charge(memory::Category::kParameters);
  const RotaryTable table = rotary_table(10, 8, kTheta, at::kFloat);
  EXPECT_EQ(table.length(), 10);
  EXPECT_EQ(table.bytes(), 2 * 10 * 4 * 4);
  EXPECT_FALSE(table.cosine.requires_grad());
  const memory::Snapshot after = memory::snapshot();
  EXPECT_EQ(after[memory::Category::kOther] - before[memory::Category::kOther], table.bytes());
  EXPECT_EQ(after.total - before.total, table.bytes());
}

// softmax(q k^T / sqrt(d)) v with the future masked, head by head.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t length = q.size(1), times = q.size(2) / k.size(2);
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  std::vector<at::Tensor> heads;
  for (std::int64_t h = 0; h < q.size(2); ++h) {
    const at::Tensor scores = q.select(2, h).matmul(k.select(2, h / times).transpose(1, 2)) /
                              std::sqrt(static_cast<double>(q.size(3)));
    const at::Tensor shares = scores.masked_fill(future, -1e300).softmax(-1);
    heads.push_back(shares.matmul(v.select(2, h / times)));
  }
  return at::stack(heads, 2);
}

class Attention : public ::testing::TestWithParam<std::pair<std::int64_t, std::int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Heads, Attention,
                         ::testing::Values(std::pair{4, 4}, std::pair{4, 2}, std::pair{6, 2},
                                           std::pair{3, 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "over" +
                                  std::to_string(info.param.second);
                         });

TEST_P(Attention, GroupedHeadsAreThoseOfThePlainForm) {
  const auto [heads, kv_heads] = GetParam();
  const at::Tensor q = random({2, 5, heads, 4}, 1, true);
  const at::Tensor k = random({2, 5, kv_heads, 4}, 2, true);
  const at::Tensor v = random({2, 5, kv_heads, 4}, 3, true);
  const at::Tensor a = leaf_of(q), b = leaf_of(k), c = leaf_of(v);
  const at::Tensor ours = causal_attention(q, k, v), plain = plain_attention(a, b, c);
  EXPECT_TRUE(close_to(ours, plain));
  const at::Tensor gradient = random(ours.sizes(), 4);
  ours.backward(gradient);
  plain.backward(gradient);
  EXPECT_TRUE(close_to(q.grad(), a.grad()));
  EXPECT_TRUE(close_to(k.grad(), b.grad()));
  EXPECT_TRUE(close_to(v.grad(), c.grad()));
}

TEST(AttentionMask, NothingReadsWhatComesLater) {
  const at::Tensor q = random({1, 6, 2, 4}, 1), k = random({1, 6, 1, 4}, 2);
  const at::Tensor v = random({1, 6, 1, 4}, 3);
  at::Tensor later_k = k.clone(), later_v = v.clone();
  later_k.narrow(1, 3, 3).fill_(7.0);
  later_v.narrow(1, 3, 3).fill_(-7.0);
  const at::Tensor before = causal_attention(q, k, v),
                   after = causal_attention(q, later_k, later_v);
  EXPECT_TRUE(identical(before.narrow(1, 0, 3), after.narrow(1, 0, 3)));
  EXPECT_FALSE(close_to(before.narrow(1, 3, 3), after.narrow(1, 3, 3), 1e-3));
}

}  // namespace
}  // namespace zero::nn
