// Layers: what they are called, how they begin, and what they compute.

#include <gtest/gtest.h>

#include <thread>

#include <tests/support/tensors.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/layers.hpp>

namespace zero::nn {
namespace {

using testing::close_to;
using testing::identical;
using testing::random;

at::Tensor parameter(const Layer& layer, const std::string& name) {
  return *layer.named_parameters().find(name);
}

// Gives a parameter values that a test can repeat.
at::Tensor filled(const Layer& layer, const std::string& name, std::uint64_t seed) {
  const at::Tensor p = parameter(layer, name);
  memory::raw(p).copy_(random(p.sizes(), seed, false, p.scalar_type()));
  return p;
}

TEST(LinearLayer, IsAMatrixAndWhereWantedABias) {
  Linear without(5, 7, Initializer::normal(0.1), at::kDouble);
  EXPECT_EQ(without.parameters().size(), 1U);
  const at::Tensor w = filled(without, "weight", 1);
  EXPECT_EQ(w.sizes(), at::IntArrayRef({7, 5}));
  const at::Tensor x = random({2, 3, 5}, 2);
  EXPECT_TRUE(close_to(without.forward(x), x.matmul(w.t())));

  Linear with(5, 7, Initializer::normal(0.1), Initializer::uniform(0.2), at::kDouble);
  EXPECT_EQ(with.parameters().size(), 2U);
  const at::Tensor v = filled(with, "weight", 3), b = filled(with, "bias", 4);
  EXPECT_EQ(b.sizes(), at::IntArrayRef({7}));
  EXPECT_TRUE(close_to(with.forward(x), x.matmul(v.t()) + b));
  EXPECT_EQ(with.initializer("bias")->kind, Initializer::Kind::kUniform);
  EXPECT_EQ(with.initializer("bias")->value, 0.2);
}

TEST(EmbeddingLayer, LooksUpAndIsAHead) {
  Embedding layer(6, 4, Initializer::normal(0.5), at::kDouble);
  const at::Tensor w = filled(layer, "weight", 1);
  EXPECT_EQ(w.sizes(), at::IntArrayRef({6, 4}));
  const at::Tensor ids = testing::longs({5, 0, 5});
  EXPECT_TRUE(identical(layer.forward(ids), w.index({ids})));
  const at::Tensor x = random({2, 4}, 2);
  EXPECT_TRUE(close_to(layer.as_head(x), x.matmul(w.t())));
}

TEST(RmsNormLayer, BeginsAsOnesAndScales) {
  RmsNorm layer(4, 1e-2, at::kDouble);
  EXPECT_EQ(layer.initializer("weight")->kind, Initializer::Kind::kConstant);
  EXPECT_EQ(layer.initializer("weight")->value, 1.0);
  const at::Tensor w = filled(layer, "weight", 1), x = random({3, 4}, 2);
  EXPECT_TRUE(close_to(layer.forward(x), x / (x.square().mean(-1, true) + 1e-2).sqrt() * w));
}

TEST(Layers, HaveTheDtypeThatTheyAreGiven) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(parameter(Linear(2, 3, Initializer::normal(1), dtype), "weight").scalar_type(),
              dtype);
    EXPECT_EQ(parameter(Embedding(2, 3, Initializer::normal(1), dtype), "weight").scalar_type(),
              dtype);
    EXPECT_EQ(parameter(RmsNorm(2, 1e-5, dtype), "weight").scalar_type(), dtype);
  }
  EXPECT_EQ(parameter(RmsNorm(2, 1e-5), "weight").scalar_type(), at::kFloat);
}

TEST(LayerParameters, AreChargedAndTrainable) {
  const memory::Snapshot before = memory::snapshot();
  Linear layer(10, 20, Initializer::normal(1));
  EXPECT_EQ(
      memory::snapshot()[memory::Category::kParameters] - before[memory::Category::kParameters],
      10 * 20 * 4);
  const at::Tensor p = parameter(layer, "weight");
  EXPECT_TRUE(p.requires_grad());
  EXPECT_TRUE(p.is_leaf());
  EXPECT_TRUE(p.is_contiguous());
  EXPECT_FALSE(layer.initializer("nonsense").has_value());
}

TEST(DeferredStorage, LeavesShapesAndNoBytes) {
  const memory::Snapshot before = memory::snapshot();
  const DeferredStorage deferred;
  Linear layer(1000, 2000, Initializer::normal(1), Initializer::constant(0));
  EXPECT_EQ(memory::snapshot().total, before.total);
  const at::Tensor p = parameter(layer, "weight");
  EXPECT_EQ(p.sizes(), at::IntArrayRef({2000, 1000}));
  EXPECT_FALSE(memory::has_storage(p));
}

TEST(DeferredStorage, NestsAndBelongsToItsThread) {
  EXPECT_FALSE(DeferredStorage::active());
  {
    const DeferredStorage outer;
    { const DeferredStorage inner; }
    EXPECT_TRUE(DeferredStorage::active());
    bool elsewhere = true;
    std::thread([&] { elsewhere = DeferredStorage::active(); }).join();
    EXPECT_FALSE(elsewhere);
  }
  EXPECT_FALSE(DeferredStorage::active());
}

}  // namespace
}  // namespace zero::nn
