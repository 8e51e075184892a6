// fp32 master weights beside the same update by hand, and every byte that they take.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

using memory::Category;
using ::testing::HasSubstr;
using Parameters = std::vector<at::Tensor>;
using States = std::map<std::string, at::Tensor>;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator).to(dtype);
}

at::Tensor trainable(const at::Tensor& values) { return values.clone().requires_grad_(); }

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Kind {
  std::string name;
  OptimizerFactory make;
  std::int64_t states;
};

std::vector<Kind> kinds() {
  return {
      {"AdamW", adamw({.learning_rate = 0.01}), 2},
      {"SGD", sgd({.learning_rate = 0.01}), 1},
      {"SGD without momentum", sgd({.learning_rate = 0.01, .momentum = 0.0}), 0},
      {"torch Adam",
       [](const Parameters& p) { return wrap(std::make_unique<torch::optim::Adam>(p, 0.01)); }, 2},
      {"torch SGD",
       [](const Parameters& p) {
         return wrap(
             std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.01).momentum(0.9)));
       },
       1},
      {"torch AdamW",
       [](const Parameters& p) {
         return wrap(std::make_unique<torch::optim::AdamW>(
             p, torch::optim::AdamWOptions(0.01).amsgrad(true)));
       },
       3},
      {"torch Adagrad",
       [](const Parameters& p) { return wrap(std::make_unique<torch::optim::Adagrad>(p, 0.01)); },
       1}};
}

TEST(MasterWeights, AreTheUpdateInFloat32AndTheParameterIsItsRounding) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Kind& kind : kinds()) {
      const at::Tensor parameter = trainable(random({5, 7}, 1, dtype));
      const at::Tensor exact = trainable(parameter.detach().to(at::kFloat));
      const auto ours = with_master_weights(kind.make)({parameter});
      const auto reference = kind.make({exact});
      for (std::uint64_t step = 0; step < 5; ++step) {
        parameter.mutable_grad() = random({5, 7}, 10 + step, dtype);
        exact.mutable_grad() = parameter.grad().to(at::kFloat);
        ours->step();
        reference->step();
        EXPECT_TRUE(at::equal(parameter, exact.to(dtype))) << kind.name << " step " << step;
        EXPECT_TRUE(at::equal(ours->state(parameter).at("master"), exact.flatten())) << kind.name;
      }
      EXPECT_EQ(ours->steps(parameter), reference->steps(exact)) << kind.name;
      for (const auto& [name, state] : reference->state(exact)) {
        EXPECT_TRUE(at::equal(ours->state(parameter).at(name), state)) << kind.name << name;
      }
    }
  }
}

// Why there are masters at all.
TEST(MasterWeights, RememberUpdatesTooSmallForTheParameter) {
  const auto train = [](const OptimizerFactory& make) {
    const at::Tensor weight = at::ones({8}, at::kBFloat16).requires_grad_();
    const auto optimizer = make({weight});
    for (int step = 0; step < 50; ++step) {
      weight.mutable_grad() = at::ones({8}, at::kBFloat16);
      optimizer->step();
    }
    return weight[0].item<double>();
  };
  const OptimizerFactory plain = sgd({.learning_rate = 1e-3, .momentum = 0.0});
  // The last bit of 1 is worth 2^-8 downwards: a thousandth is rounded away, fifty times.
  EXPECT_EQ(train(plain), 1.0);
  EXPECT_NEAR(train(with_master_weights(plain)), 0.95, 0.002);
}

TEST(MasterWeights, LeaveFloat32AsItIs) {
  const at::Tensor a = trainable(random({33}, 1)), b = trainable(random({33}, 1));
  const auto ours = with_master_weights(adamw())({a});
  const auto plain = adamw()({b});
  for (std::uint64_t step = 0; step < 3; ++step) {
    a.mutable_grad() = b.mutable_grad() = random({33}, step);
    ours->step();
    plain->step();
  }
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_FALSE(ours->state(a).contains("master"));
  EXPECT_EQ(ours->settings().kind, "AdamW");
  EXPECT_EQ(ours->state_bytes(a), plain->state_bytes(b));
}

TEST(MasterWeights, GiveFloat32ParametersTheLearningRateToo) {
  const at::Tensor weight = trainable(random({33}, 1));
  const at::Tensor before = weight.detach().clone();
  const auto optimizer = with_master_weights(sgd({.learning_rate = 0.5}))({weight});
  optimizer->set_learning_rate(0);
  weight.mutable_grad() = random({33}, 2);
  optimizer->step();
  EXPECT_TRUE(at::equal(weight, before));
}

TEST(MasterWeights, StandBesideFloat32ParametersInOneOptimizer) {
  const at::Tensor half = trainable(random({9}, 1, at::kHalf)), wide = trainable(random({9}, 2));
  const at::Tensor alone = trainable(wide.detach());
  const auto ours = with_master_weights(adamw())({half, wide});
  const auto plain = adamw()({alone});
  for (std::uint64_t step = 0; step < 3; ++step) {
    half.mutable_grad() = random({9}, step, at::kHalf);
    wide.mutable_grad() = alone.mutable_grad() = random({9}, 50 + step);
    ours->step();
    plain->step();
  }
  EXPECT_EQ(ours->steps(half), 3);
  EXPECT_EQ(ours->steps(wide), 3);
  EXPECT_TRUE(at::equal(wide, alone));
}

// A rank that holds a shard has masters for the shard, and the same bits.
TEST(MasterWeights, GoByShardToTheSameBits) {
  for (const std::int64_t size : {1, 15, 16, 17, 63, 1000, 4097}) {
    const at::Tensor whole = trainable(random({size}, 1, at::kBFloat16));
    const at::Tensor other = trainable(whole.detach());
    const std::int64_t cut = size / 2;
    const at::Tensor flat = other.detach();
    const at::Tensor first = flat.narrow(0, 0, cut), second = flat.narrow(0, cut, size - cut);
    const auto of_whole = with_master_weights(adamw({.learning_rate = 0.1}))({whole});
    const auto of_first = with_master_weights(adamw({.learning_rate = 0.1}))({other});
    const auto of_second = with_master_weights(adamw({.learning_rate = 0.1}))({other});
    of_first->replace([&](const at::Tensor&) { return first; });
    of_second->replace([&](const at::Tensor&) { return second; });
    for (std::uint64_t step = 0; step < 5; ++step) {
      whole.mutable_grad() = random({size}, 3 + step, at::kBFloat16);
      first.mutable_grad() = whole.grad().narrow(0, 0, cut);
      second.mutable_grad() = whole.grad().narrow(0, cut, size - cut);
      of_whole->step();
      of_first->step();
      of_second->step();
    }
    EXPECT_TRUE(at::equal(whole, other)) << size;
    EXPECT_TRUE(at::equal(of_whole->state(whole).at("master").narrow(0, cut, size - cut),
                          of_second->state(second).at("master")))
        << size;
  }
}

TEST(MasterWeights, TakeTheBytesThatTheySayAndNoneForOthers) {
  for (const Kind& kind : kinds()) {
    const at::Tensor mine = trainable(random({1000}, 1, at::kBFloat16));
    const at::Tensor theirs = trainable(random({5000}, 1, at::kBFloat16));
    const std::int64_t before = memory::snapshot()[Category::kOptimizer];
    const auto optimizer = with_master_weights(kind.make)({theirs, mine});
    optimizer->narrow([&](const at::Tensor& p) { return p.is_same(mine); });
    const auto held = [&] { return memory::snapshot()[Category::kOptimizer] - before; };
    EXPECT_EQ(held(), 0) << kind.name << ": something was made before the first update";
    EXPECT_EQ(optimizer->state_bytes(mine), 1000 * 4 * (1 + kind.states)) << kind.name;
    mine.mutable_grad() = random({1000}, 2, at::kBFloat16);
    theirs.mutable_grad() = random({5000}, 2, at::kBFloat16);
    optimizer->step();
    EXPECT_EQ(held(), optimizer->state_bytes(mine)) << kind.name;
    EXPECT_TRUE(optimizer->state(theirs).empty());
  }
}

// Several are widened together: each ends as if it were alone, also beside some without a gradient
// or without elements.
TEST(MasterWeights, UpdateManyTogetherAsEachByItself) {
  for (const Kind& kind : kinds()) {
    Parameters together, alone;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const auto size = static_cast<std::int64_t>(i * i % 97);
      together.push_back(trainable(random({size}, i, i % 5 == 0 ? at::kHalf : at::kBFloat16)));
      alone.push_back(trainable(together.back().detach().to(at::kFloat)));
    }
    const auto ours = with_master_weights(kind.make)(together);
    ours->set_gradient_scale(8);
    std::vector<std::unique_ptr<Optimizer>> theirs;
    for (const at::Tensor& p : alone) theirs.push_back(kind.make({p}));
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < together.size(); ++i) {
        const at::Tensor& p = together[i];
        p.mutable_grad() =
            (i + step) % 7 == 0 ? at::Tensor() : random(p.sizes(), 100 * step + i, p.scalar_type());
        alone[i].mutable_grad() = p.grad().defined() ? p.grad().to(at::kFloat) / 8 : at::Tensor();
        theirs[i]->step();
      }
      ours->step();
    }
    for (std::size_t i = 0; i < together.size(); ++i) {
      EXPECT_TRUE(at::equal(together[i], alone[i].to(together[i].scalar_type())))
          << kind.name << " " << i;
      EXPECT_EQ(ours->steps(together[i]), theirs[i]->steps(alone[i])) << kind.name << " " << i;
    }
  }
}

TEST(MasterWeights, ScratchOfManySmallOnesIsASixteenthOfAll) {
  Parameters parameters;
  for (int i = 0; i < 256; ++i) parameters.push_back(trainable(random({64}, 1, at::kBFloat16)));
  const auto optimizer = with_master_weights(adamw())(parameters);
  for (const at::Tensor& p : parameters) p.mutable_grad() = random({64}, 2, at::kBFloat16);
  optimizer->step();
  memory::reset_peaks();
  const auto before = memory::snapshot();
  optimizer->step();
  const std::int64_t scratch =
      memory::snapshot().peak_of(Category::kOther) - before[Category::kOther];
  EXPECT_GE(scratch, 256 * 64 * 4 / 16);
  EXPECT_LE(scratch, 256 * 64 * 4 / 16 + 1024);
}

TEST(MasterWeights, ScratchIsOneWidenedGradientAndGoesAgain) {
  Parameters parameters;
  for (int i = 0; i < 5; ++i) parameters.push_back(trainable(random({4096}, 1, at::kBFloat16)));
  const auto optimizer = with_master_weights(adamw())(parameters);
  for (int step = 0; step < 2; ++step) {
    for (const at::Tensor& p : parameters) p.mutable_grad() = random({4096}, 2, at::kBFloat16);
    memory::reset_peaks();
    const auto before = memory::snapshot();
    optimizer->step();
    const auto after = memory::snapshot();
    EXPECT_EQ(after[Category::kOther], before[Category::kOther]);
    EXPECT_LE(after.peak_of(Category::kOther) - before[Category::kOther], 4096 * 4 + 1024);
  }
}

TEST(MasterWeights, DivideByTheScaleWithoutRounding) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor a = trainable(random({37}, 1, dtype)), b = trainable(a.detach());
    // Not AdamW, to whose steps the scale makes hardly a difference.
    const auto scaled = with_master_weights(sgd())({trainable(a.detach())});
    scaled->replace([&](const at::Tensor&) { return a; });  // as a shard takes a parameter's place
    const auto plain = with_master_weights(sgd())({b});
    scaled->set_gradient_scale(1024);
    for (std::uint64_t step = 0; step < 3; ++step) {
      b.mutable_grad() = random({37}, step, dtype);
      a.mutable_grad() = b.grad() * 1024;
      const at::Tensor seen = a.grad().clone();
      scaled->step();
      plain->step();
      EXPECT_TRUE(at::equal(a, b)) << c10::toString(dtype);
      EXPECT_TRUE(at::equal(a.grad(), seen)) << "the gradient that others see was changed";
    }
  }
  EXPECT_THAT(message_of([] { adamw()({})->set_gradient_scale(2); }),
              HasSubstr("with_master_weights"));
  EXPECT_THAT(message_of([] { with_master_weights(adamw())({})->set_gradient_scale(0); }),
              HasSubstr("cannot be 0 times"));
}

TEST(MasterWeights, StatesComeBackToTheSameBits) {
  for (const Kind& kind : kinds()) {
    const at::Tensor first = trainable(random({6, 5}, 1, at::kBFloat16));
    const auto one = with_master_weights(kind.make)({first});
    EXPECT_EQ(one->settings().kind, kind.name + " with master weights");
    const auto update = [](Optimizer& optimizer, const at::Tensor& p, std::uint64_t step) {
      p.mutable_grad() = random({6, 5}, step, at::kBFloat16);
      optimizer.step();
    };
    for (std::uint64_t step = 0; step < 3; ++step) update(*one, first, step);
    const at::Tensor second = trainable(first.detach());
    const auto two = with_master_weights(kind.make)({second});
    States states;
    for (const auto& [name, state] : one->state(first)) states[name] = state.clone();
    two->load_state(second, one->steps(first), states);
    for (std::uint64_t step = 3; step < 6; ++step) {
      update(*one, first, step);
      update(*two, second, step);
    }
    EXPECT_TRUE(at::equal(first, second)) << kind.name;
    EXPECT_TRUE(at::equal(one->state(first).at("master"), two->state(second).at("master")));
    EXPECT_EQ(one->steps(first), two->steps(second)) << kind.name;
  }
}

TEST(MasterWeights, RefuseStatesThatAreNotTheirs) {
  const at::Tensor p = trainable(random({4}, 1, at::kBFloat16));
  const auto optimizer = with_master_weights(adamw())({p});
  const at::Tensor zeros = at::zeros({4});
  const auto refusal = [&](const States& states) {
    return message_of([&] { optimizer->load_state(p, 1, states); });
  };
  EXPECT_THAT(refusal({{"exp_avg", zeros}, {"exp_avg_sq", zeros}}), HasSubstr("no master weight"));
  EXPECT_THAT(refusal({{"exp_avg", zeros}, {"exp_avg_sq", zeros}, {"master", at::zeros({5})}}),
              HasSubstr("5 elements of Float; it must have 4"));
  EXPECT_THAT(
      refusal(
          {{"exp_avg", zeros}, {"exp_avg_sq", zeros}, {"master", at::zeros({4}, at::kBFloat16)}}),
      HasSubstr("of BFloat16"));
  EXPECT_THAT(
      refusal(
          {{"exp_avg", zeros.to(at::kBFloat16)}, {"exp_avg_sq", zeros}, {"master", zeros.clone()}}),
      HasSubstr("the parameter has 4 of Float"));
}

}  // namespace
}  // namespace zero::optim
