// Programs under autocast to bfloat16, beside the model trained alone under it.

#include <ATen/ATen.h>

#include <optional>

#include <tests/plain/plain_run.hpp>
#include <tests/support/autocast.hpp>
#include <tests/support/modes.hpp>
#include <zero/nn/functional.hpp>

namespace zero::testing {
namespace {

constexpr auto kAutocastModels = {"gpt2",          "used_twice", "views", "lstm",
                                  "gpt2_of_units", "mlp",        "llama"};

at::Tensor loss_under_autocast(const PlainModule& made) {
  const Autocast autocast;
  return made.loss().to(at::kFloat);
}

// LibTorch keeps the bfloat16 copy of a weight until the scope ends: also for a second forward,
// which then does not read the weight, and after an update.
void expect_a_scope_for_each_forward(dist::Communicator& communicator, int stage,
                                     const std::string& name, bool around_steps) {
  const auto seed = [](int number, int m) { at::manual_seed(10 * number + m); };
  const PlainModule alone = PlainRun::make(name);
  const auto optimizer = optim::adamw()(alone.module->parameters());
  for (int number = 0; number < 3; ++number) {
    for (int m = 0; m < 2; ++m) {
      seed(number, m);
      (loss_under_autocast(alone) / 2).backward();
    }
    optimizer->step();
    for (const at::Tensor& p : alone.module->parameters()) p.mutable_grad().reset();
  }
  // Both ranks have these batches.
  PlainRun run(communicator, name, {.stage = stage, .accumulation_steps = 2}, optim::adamw());
  run.made.loss = [loss = run.made.loss] { return loss().to(at::kFloat); };
  std::optional<Autocast> outer;
  if (around_steps) outer.emplace();
  for (int number = 0; number < 3; ++number) {
    std::vector<at::Tensor> losses;
    std::optional<Autocast> inner;
    if (!around_steps) inner.emplace();
    for (int m = 0; m < 2; ++m) {
      seed(number, m);
      losses.push_back(run.forward());
    }
    inner.reset();
    for (const at::Tensor& loss : losses) {
      run.engine.backward(loss);
      run.engine.step();
    }
  }
  EXPECT_TRUE(same_bits(run.weights(), alone.module->parameters()));
}

TEST(AutocastProgramOnTwoRanks, HasTheBitsOfTheModelAloneInOneScopeAroundForwards) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    for (const char* name : kAutocastModels) {
      for (const bool around_steps : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, around steps: {}", name, around_steps));
        expect_a_scope_for_each_forward(communicator, stage, name, around_steps);
      }
    }
  });
}

// The linear layer is at::linear() then, forward and backward.
TEST(LinearUnderAutocast, IsThatOfLibTorch) {
  const at::Tensor x = at::randn({5, 7}), weight = at::randn({3, 7}), bias = at::randn({3});
  std::vector<at::Tensor> results;
  for (const bool ours : {false, true}) {
    const at::Tensor w = weight.clone().requires_grad_(), b = bias.clone().requires_grad_();
    const at::Tensor in = x.clone().requires_grad_();
    {
      const Autocast autocast;
      const at::Tensor y = ours ? nn::linear(in, w, b) : at::linear(in, w, b);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      y.square().sum().backward();
    }
    for (const at::Tensor& t : {in, w, b}) results.push_back(t.grad());
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3]));
}

}  // namespace
}  // namespace zero::testing
