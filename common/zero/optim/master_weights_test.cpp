// fp32 master weights beside the same update by hand, and every byte that they take.
#include <ATen/CPUGeneratorImpl.h>

#include <tests/support/error_of.hpp>
#include <tests/support/optimizers.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::optim {
namespace {

using memory::Category;
using testing::expect_error;
using testing::optimizer_kinds;
using testing::OptimizerKind;
using Parameters = std::vector<at::Tensor>;
using States = std::map<std::string, at::Tensor>;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator).to(dtype);
}

at::Tensor trainable(const at::Tensor& values) { return values.clone().requires_grad_(); }

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
  const OptimizerFactory plain = testing::sgd(1e-3, 0.0);
  // The last bit of 1 is worth 2^-8 downwards: a thousandth is rounded away, fifty times.
  EXPECT_EQ(train(plain), 1.0);
  EXPECT_NEAR(train(with_master_weights(plain)), 0.95, 0.002);
}

// The elements that were written, in place; others keep what the parameter's type cannot hold.
TEST(MasterWeights, FollowWhatIsWrittenIntoTheParameter) {
  const at::Tensor weight = at::ones({8}, at::kBFloat16).requires_grad_();
  const auto optimizer = with_master_weights(testing::sgd(1e-3, 0.0))({weight});
  const auto expect_masters_after_step = [&](double first, double second) {
    weight.mutable_grad() = at::ones({8}, at::kBFloat16);
    optimizer->step();
    const at::Tensor masters = optimizer->state(weight).at("master");
    EXPECT_NEAR(masters[0].item<double>(), first, 1e-6);
    EXPECT_NEAR(masters[1].item<double>(), second, 1e-6);
  };
  expect_masters_after_step(0.999, 0.999);
  weight.detach()[1].fill_(3);
  expect_masters_after_step(0.998, 2.999);
  weight.data().fill_(5);  // nothing tells of it
  expect_masters_after_step(0.997, 2.998);
}

TEST(MasterWeights, LeaveFloat32ParametersAsTheyAreAlsoBesideOthers) {
  for (const bool beside : {false, true}) {
    const at::Tensor half = trainable(random({9}, 1, at::kHalf)), wide = trainable(random({9}, 2));
    const at::Tensor alone = trainable(wide.detach());
    const auto ours =
        with_master_weights(adamw())(beside ? Parameters{half, wide} : Parameters{wide});
    const auto plain = adamw()({alone});
    for (std::uint64_t step = 0; step < 3; ++step) {
      half.mutable_grad() = random({9}, step, at::kHalf);
      wide.mutable_grad() = alone.mutable_grad() = random({9}, 50 + step);
      ours->step();
      plain->step();
    }
    EXPECT_EQ(ours->steps(wide), 3);
    EXPECT_TRUE(at::equal(wide, alone));
    EXPECT_FALSE(ours->state(wide).contains("master"));
    EXPECT_EQ(ours->settings().kind, beside ? "AdamW with master weights" : "AdamW");
    EXPECT_EQ(ours->state_bytes(wide), plain->state_bytes(alone));
    if (beside) {
      EXPECT_EQ(ours->steps(half), 3);
    }
    ours->set_learning_rate(0);
    ours->step();
    EXPECT_TRUE(at::equal(wide, alone));
  }
}

TEST(MasterWeights, TakeTheBytesThatTheySayAndNoneForOthers) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
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

// Several are widened together: each ends as the rounding of the update in float32 by itself, also
// beside some without a gradient or without elements.
TEST(MasterWeights, AreTheUpdateInFloat32AndTheParameterIsItsRounding) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    Parameters together, alone;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const auto rows = static_cast<std::int64_t>(i * i % 97);
      const at::ScalarType dtype = i % 5 == 0 ? at::kHalf : at::kBFloat16;
      together.push_back(trainable(random({rows, 2}, i, dtype)));
      alone.push_back(trainable(together.back().detach().to(at::kFloat)));
    }
    const auto ours = with_master_weights(kind.make)(together);
    ours->set_gradient_scale(8);
    std::vector<std::unique_ptr<Optimizer>> theirs;
    for (const at::Tensor& p : alone) theirs.push_back(kind.make({p}));
    for (std::uint64_t step = 0; step < 5; ++step) {
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
      SCOPED_TRACE(kind.name + " " + std::to_string(i));
      const States states = ours->state(together[i]);
      EXPECT_TRUE(at::equal(together[i], alone[i].to(together[i].scalar_type())));
      EXPECT_TRUE(at::equal(states.at("master"), alone[i].flatten()));
      EXPECT_EQ(ours->steps(together[i]), theirs[i]->steps(alone[i]));
      for (const auto& [name, state] : theirs[i]->state(alone[i])) {
        EXPECT_TRUE(at::equal(states.at(name), state)) << name;
      }
    }
  }
}

// Of many small ones a sixteenth of all, else one widened gradient; and it goes again.
TEST(MasterWeights, ScratchIsASixteenthOfAllOrOneParameter) {
  for (const auto& [count, size, scratch] :
       {std::tuple{256, 64, 256 * 64 * 4 / 16}, {5, 4096, 4096 * 4}}) {
    Parameters parameters;
    for (int i = 0; i < count; ++i) {
      parameters.push_back(trainable(random({size}, 1, at::kBFloat16)));
      parameters.back().mutable_grad() = random({size}, 2, at::kBFloat16);
    }
    const auto optimizer = with_master_weights(adamw())(parameters);
    for (int step = 0; step < 2; ++step) {
      memory::reset_peaks();
      const auto before = memory::snapshot();
      optimizer->step();
      const auto after = memory::snapshot();
      EXPECT_EQ(after[Category::kOther], before[Category::kOther]) << count;
      EXPECT_LE(after.peak_of(Category::kOther) - before[Category::kOther], scratch + 1024)
          << count;
    }
    memory::reset_peaks();
    const std::int64_t before = memory::snapshot()[Category::kOther];
    optimizer->step();
    EXPECT_GE(memory::snapshot().peak_of(Category::kOther) - before, scratch) << count;
  }
}

TEST(MasterWeights, DivideByTheScaleWithoutRounding) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor a = trainable(random({37}, 1, dtype)), b = trainable(a.detach());
    // Not AdamW, to whose steps the scale makes hardly a difference.
    const auto scaled = with_master_weights(testing::sgd())({trainable(a.detach())});
    scaled->replace([&](const at::Tensor&) { return a; });  // as a shard takes a parameter's place
    const auto plain = with_master_weights(testing::sgd())({b});
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
  expect_error([] { adamw()({})->set_gradient_scale(2); }, {"with_master_weights"});
  expect_error([] { with_master_weights(adamw())({})->set_gradient_scale(0); },
               {"cannot be 0 times"});
}

TEST(MasterWeights, RefuseStatesThatAreNotTheirs) {
  const at::Tensor p = trainable(random({4}, 1, at::kBFloat16));
  const auto optimizer = with_master_weights(adamw())({p});
  const at::Tensor zeros = at::zeros({4}), narrow = zeros.to(at::kBFloat16);
  const auto load = [&](const at::Tensor& average, const at::Tensor& master) {
    States states = {{"exp_avg", average}, {"exp_avg_sq", zeros}};
    if (master.defined()) states["master"] = master;
    return [&, states] { optimizer->load_state(p, 1, states); };
  };
  expect_error(load(zeros, at::Tensor()), {"no master weight"});
  expect_error(load(zeros, at::zeros({5})), {"5 elements of Float; it must have 4"});
  expect_error(load(zeros, narrow), {"of BFloat16"});
  expect_error(load(narrow, zeros.clone()), {"the parameter has 4 of Float"});
}

}  // namespace
}  // namespace zero::optim
