#include "scripted_model.hpp"

#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>

#include "deferred.hpp"
#include "session.hpp"
#include "tensors.hpp"
#include "whole_weights.hpp"

namespace zero::testing {
namespace {
constexpr std::int64_t kWidth = 6;
}

ScriptedBlock::ScriptedBlock(const ScriptedModelOptions& options) {
  const auto normal = nn::Initializer::normal(0.4);
  scale = add_parameter("scale", {kWidth}, nn::Initializer::normal(1));
  shift = add_parameter("shift", {kWidth}, nn::Initializer::normal(1));
  linear = register_module("linear", std::make_shared<nn::Linear>(kWidth, kWidth, normal));
  if (!options.biases_only) return;
  for (const at::Tensor& p : parameters()) p.requires_grad_(p.is_same(shift));
}

at::Tensor ScriptedBlock::forward_without_run(const at::Tensor& x) {
  at::Tensor y = linear->forward(x);
  if (inside) y = inside(y);
  return (y * scale).tanh() + shift;
}

at::Tensor ScriptedBlock::forward(const at::Tensor& x) {
  return run([&] { return forward_without_run(x); });
}

ScriptedModel::ScriptedModel(const ScriptedModelOptions& options) : options_(options) {
  head = add_parameter("head", {kWidth, kWidth}, nn::Initializer::normal(0.4));
  for (int b = 0; b < options.blocks; ++b) {
    blocks.push_back(
        register_module(fmt::format("block{}", b), std::make_shared<ScriptedBlock>(options)));
  }
}

at::Tensor ScriptedModel::loss(const data::Batch& batch) {
  if (before_loss) before_loss(batch);
  return run([&] { return at::mse_loss(outputs(batch.inputs), batch.targets); });
}

at::Tensor ScriptedModel::predict(const data::Batch& batch) {
  return run([&] { return outputs(batch.inputs); });
}

at::Tensor ScriptedModel::outputs(at::Tensor x) {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const bool forgets = static_cast<int>(b) == options_.forgets_run;
    x = forgets ? blocks[b]->forward_without_run(x) : blocks[b]->forward(x);
    if (after_block) x = after_block(x);
  }
  if (in_forward) in_forward();
  if (in_backward && x.requires_grad()) {
    x.register_hook([this](const at::Tensor&) { in_backward(); });
  }
  return x.matmul(head);
}

ScriptedRun::ScriptedRun(dist::Communicator& communicator, const std::string& mode,
                         const ScriptedModelOptions& options)
    : rank(communicator.rank()) {
  model = make_deferred<ScriptedModel>(options);
  strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""});
}

data::Batch ScriptedRun::batch(int step) const {
  const auto seed = static_cast<std::uint64_t>(10 * step + rank);
  const at::Tensor inputs = random({4, kWidth}, seed, /*gradient=*/false, at::kFloat);
  return {.inputs = inputs, .targets = inputs.sin(), .loss_terms = 4};
}

void ScriptedRun::backward_of(const at::Tensor& loss) {
  strategy->backward(loss);
  finish_step(*strategy);
}

void ScriptedRun::step(int number) {
  strategy->zero_grad();
  backward_of(forward_batch(*strategy, batch(number)));
}

std::int64_t ScriptedRun::peak_of_step(int number) {
  memory::reset_peaks();
  const std::int64_t rest = strategy->costs().at_rest.parameters;
  const auto parameters = [] { return memory::snapshot()[memory::Category::kParameters]; };
  const std::int64_t before = parameters();
  step(number);
  EXPECT_GE(before, rest);
  return memory::snapshot().peak_of(memory::Category::kParameters) - parameters();
}

std::size_t ScriptedRun::unit_of(const std::string& parameter) const {
  for (const nn::Parameter& p : strategy->list().parameters) {
    if (p.name == parameter) return p.unit;
  }
  throw Error("no parameter " + parameter);
}

std::vector<std::string> stage_3_modes() {
  std::vector<std::string> modes = all_modes();
  std::erase_if(modes, [](const std::string& mode) { return !is_stage_3(mode); });
  return modes;
}

void expect_scripts_like_ddp(int world_size, const ScriptedModelOptions& options,
                             const std::function<void(ScriptedRun&)>& script) {
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    const auto play = [&](const std::string& mode) {
      ScriptedRun run(communicator, mode, options);
      script(run);
      return whole_weights(*run.strategy);
    };
    const std::vector<at::Tensor> reference = play("ddp");
    for (const std::string& mode : all_modes()) {
      EXPECT_TRUE(same_bits(play(mode), reference)) << mode;
    }
  });
}

}  // namespace zero::testing
