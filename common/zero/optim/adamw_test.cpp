// The fused AdamW against LibTorch's own and, for shards, against themselves on whole tensors;
// and norms of gradients.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include <zero/optim/adamw.hpp>
#include <zero/optim/norm.hpp>
#include <zero/optim/optimizer.hpp>

namespace zero::optim {
namespace {

at::Tensor parameter(const at::Tensor& values) { return values.clone().requires_grad_(); }

// Each setting changed alone, and all of them.
const AdamWOptions kSettings[] = {
    {.learning_rate = 0.02},
    {.learning_rate = 0.02, .beta1 = 0.5},
    {.learning_rate = 0.02, .beta2 = 0.9},
    {.learning_rate = 0.02, .epsilon = 0.05},
    {.learning_rate = 0.02, .weight_decay = 0.3},
    {.learning_rate = 0.02, .weight_decay = 0},
    {.learning_rate = 0.04, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.5},
};

// Five updates of both with the same gradients.
void expect_same_updates(const at::Tensor& ours, Optimizer& fused, const at::Tensor& theirs,
                         torch::optim::Optimizer& reference) {
  for (int step = 0; step < 5; ++step) {
    at::manual_seed(static_cast<std::uint64_t>(100 + step));
    ours.mutable_grad() = at::randn(ours.sizes());
    theirs.mutable_grad() = ours.grad().clone();
    fused.step();
    reference.step();
    EXPECT_TRUE(at::allclose(ours, theirs, 1e-5, 1e-7)) << "step " << step;
  }
}

TEST(FusedAdamW, DoesWhatLibTorchsAdamWDoes) {
  at::manual_seed(1);
  const at::Tensor start = at::randn({33, 7});
  std::vector<at::Tensor> results;
  for (const AdamWOptions& o : kSettings) {
    const at::Tensor ours = parameter(start);
    const at::Tensor theirs = parameter(start);
    const auto fused = adamw(o)({ours});
    torch::optim::AdamW reference({theirs}, torch::optim::AdamWOptions(o.learning_rate)
                                                .betas({o.beta1, o.beta2})
                                                .eps(o.epsilon)
                                                .weight_decay(o.weight_decay));
    SCOPED_TRACE(results.size());
    expect_same_updates(ours, *fused, theirs, reference);
    EXPECT_EQ(fused->steps(ours), 5);
    // No setting does nothing.
    EXPECT_FALSE(at::allclose(ours, start, 1e-3, 1e-3));
    for (const at::Tensor& other : results) EXPECT_FALSE(at::allclose(ours, other, 1e-4, 1e-5));
    results.push_back(ours.detach().clone());
  }
}

void expect_shards_give_the_bits_of_the_whole(std::int64_t n, std::int64_t pieces,
                                              const AdamWOptions& options) {
  const at::Tensor start = at::randn({n});
  const at::Tensor whole = parameter(start);
  std::vector<at::Tensor> shards;
  for (const at::Tensor& piece : start.tensor_split(pieces)) shards.push_back(parameter(piece));
  const auto for_whole = adamw(options)({whole});
  const auto for_shards = adamw(options)(shards);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gradient = at::randn({n});
    whole.mutable_grad() = gradient;
    const auto cut = gradient.tensor_split(pieces);
    for (std::size_t i = 0; i < shards.size(); ++i) shards[i].mutable_grad() = cut[i].contiguous();
    for_whole->step();
    for_shards->step();
  }
  EXPECT_TRUE(at::equal(at::cat(shards), whole)) << n << " in " << pieces;
}

// A shard may begin and end anywhere: no element may know.
TEST(FusedAdamW, ShardsGiveTheBitsOfTheWhole) {
  at::manual_seed(3);
  for (const std::int64_t n : {1, 15, 16, 17, 1000, 4099}) {
    for (const std::int64_t pieces : {2, 3, 7}) {
      for (const AdamWOptions& options : kSettings) {
        expect_shards_give_the_bits_of_the_whole(n, pieces, options);
      }
    }
  }
}

TEST(FusedAdamW, LeavesParametersWithoutGradientAlone) {
  const at::Tensor used = parameter(at::ones({20}));
  const at::Tensor unused = parameter(at::ones({20}));
  const auto optimizer = adamw()({used, unused});
  used.mutable_grad() = at::ones({20});
  optimizer->step();
  EXPECT_TRUE(at::equal(unused, at::ones({20})));
  EXPECT_EQ(optimizer->steps(unused), 0);
  EXPECT_EQ(optimizer->steps(used), 1);
  EXPECT_TRUE(optimizer->state(unused).empty());
  EXPECT_EQ(optimizer->state(used).size(), 2U);
}

TEST(FusedAdamW, GroupsHaveSettingsOfTheirOwn) {
  const at::Tensor slow = parameter(at::zeros({16}));
  const at::Tensor fast = parameter(at::zeros({16}));
  const auto optimizer = make_adamw({{{slow}, {.learning_rate = 0.001, .weight_decay = 0}},
                                     {{fast}, {.learning_rate = 0.1, .weight_decay = 0}}});
  const auto step = [&] {
    slow.mutable_grad() = at::ones({16});
    fast.mutable_grad() = at::ones({16});
    optimizer->step();
  };
  step();
  // AdamW's first step is the learning rate, whatever the gradient.
  EXPECT_NEAR(slow[0].item<double>(), -0.001, 1e-6);
  EXPECT_NEAR(fast[0].item<double>(), -0.1, 1e-6);
  optimizer->set_learning_rate(0.0);
  const at::Tensor before = fast.detach().clone();
  step();
  EXPECT_TRUE(at::equal(fast, before));
}

TEST(Norm, OfSquaresAndItsCoefficient) {
  EXPECT_EQ(norm_from_squares({9.0, 16.0}), 5.0F);
  EXPECT_EQ(clip_coefficient(5.0F, 10.0), 1.0F);
  EXPECT_EQ(clip_coefficient(5.0F, 1.0), 1.0F / (5.0F + 1e-6F));
  // As clip_grad_norm_ of LibTorch does, just below the limit too.
  EXPECT_LT(clip_coefficient(1.0F, 1.0), 1.0F);
  EXPECT_EQ(clip_coefficient(1.0, 1.0), 1.0 / (1.0 + 1e-6));
}

// Odd sizes, one without elements, and every type a gradient may have.
std::vector<at::Tensor> tensors_of_all_types() {
  std::vector<at::Tensor> all;
  at::Generator generator = at::detail::createCPUGenerator(/*seed=*/3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t n : {1, 0, 7, 1000, 4099}) {
      all.push_back((at::randn({n}, generator) * 3).to(dtype));
    }
  }
  return all;
}

// By list is the code that a GPU takes, on the CPU: the sums differ in their order only.
TEST(NormsOfTensors, AreEachTensorsOwnAndByListTheSame) {
  const std::vector<at::Tensor> all = tensors_of_all_types();
  const std::vector<double> squares = squared_norms(all);
  const std::vector<double> largest = largest_magnitudes(all);
  const std::vector<double> norms = detail::norms_by_list(all, 2);
  ASSERT_EQ(norms.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(squares[i], squared_norm(all[i])) << i;
    const at::Tensor magnitudes = all[i].to(at::kDouble).abs();
    EXPECT_NEAR(squares[i], magnitudes.square().sum().item<double>(), 1e-10 * squares[i]) << i;
    EXPECT_EQ(largest[i], all[i].numel() == 0 ? 0 : magnitudes.amax().item<double>()) << i;
    EXPECT_NEAR(norms[i] * norms[i], squares[i], 1e-12 * squares[i]) << i;
  }
  EXPECT_EQ(detail::norms_by_list(all, INFINITY), largest);
  EXPECT_TRUE(detail::norms_by_list({}, 2).empty());
  EXPECT_TRUE(squared_norms({}).empty());
  EXPECT_TRUE(largest_magnitudes({}).empty());
}

TEST(NormsOfTensors, ShowWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::vector<at::Tensor> all = {at::tensor({1.0F, 2.0F}).to(dtype),
                                           at::tensor({1.0F, bad, 2.0F}).to(dtype),
                                           at::tensor({3.0F}).to(dtype)};
      for (const auto& found :
           {squared_norms(all), largest_magnitudes(all), detail::norms_by_list(all, 2),
            detail::norms_by_list(all, INFINITY)}) {
        EXPECT_TRUE(std::isfinite(found[0]));
        EXPECT_FALSE(std::isfinite(found[1]));
        EXPECT_EQ(std::isnan(found[1]), std::isnan(bad));
        EXPECT_TRUE(std::isfinite(found[2]));
      }
    }
  }
}

// What a float cannot hold is finite all the same where the gradient is of doubles.
TEST(NormsOfTensors, OfDoublesGoBeyondFloats) {
  const at::Tensor large = at::tensor({1e100, -2e100}, at::kDouble);
  EXPECT_EQ(largest_magnitudes({large}).front(), 2e100);
  EXPECT_EQ(detail::norms_by_list({large}, INFINITY).front(), 2e100);
}

}  // namespace
}  // namespace zero::optim
