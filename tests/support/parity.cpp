#include "parity.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>

#include <zero/optim/adamw.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/torch_optimizer.hpp>

#include "edge_case_model.hpp"

namespace zero::testing {
namespace {

template <typename Optimizer, typename Options>
optim::OptimizerFactory wrapped(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return optim::wrap(std::make_unique<Optimizer>(parameters, options));
  };
}

optim::OptimizerFactory optimizer_of(const RunOptions& options) {
  if (options.optimizer == "adamw, maximize") return optim::adamw({.maximize = true});
  if (options.optimizer == "sgd") return optim::sgd({.learning_rate = 0.05, .momentum = 0.9});
  namespace to = torch::optim;
  if (options.optimizer == "torch_adam") return wrapped<to::Adam>(to::AdamOptions(0.01));
  if (options.optimizer == "torch_sgd") {
    return wrapped<to::SGD>(to::SGDOptions(0.05).momentum(0.9));
  }
  if (options.optimizer == "torch_amsgrad") {
    return wrapped<to::AdamW>(to::AdamWOptions(0.01).amsgrad(true));
  }
  if (options.optimizer == "torch_rmsprop") {
    return wrapped<to::RMSprop>(to::RMSpropOptions(0.01).momentum(0.9).centered(true));
  }
  if (options.optimizer == "torch_adagrad") {
    return wrapped<to::Adagrad>(to::AdagradOptions(0.01).initial_accumulator_value(0.1));
  }
  return optim::adamw({.learning_rate = 0.01});
}

// Gradients as they are just before the optimizer sees them.
class Recorder final : public optim::Optimizer {
 public:
  Recorder(std::unique_ptr<optim::Optimizer> inner, std::function<void()> before_step)
      : inner_(std::move(inner)), before_step_(std::move(before_step)) {}
  void step() override {
    before_step_();
    inner_->step();
  }
  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    inner_->replace(with);
  }
  std::map<std::string, at::Tensor> state(const at::Tensor& p) const override {
    return inner_->state(p);
  }
  std::int64_t steps(const at::Tensor& p) const override { return inner_->steps(p); }
  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }

 private:
  std::unique_ptr<optim::Optimizer> inner_;
  std::function<void()> before_step_;
};

void record_gradients(train::Strategy& strategy, int step, RunRecord& record) {
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const train::ParameterShard mine = strategy.piece(i);
    if (!mine.tensor.defined()) continue;
    const std::string name =
        fmt::format("gradient {} step {}", strategy.list().parameters[i].name, step);
    const at::Tensor gradient = mine.tensor.grad();
    record.tensors.emplace_back(name, gradient.defined() ? gradient.clone() : at::Tensor());
    record.begins[name] = mine.begin;
  }
}

void record_end(train::Strategy& strategy, RunRecord& record) {
  const nn::ParameterList& list = strategy.list();
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      const nn::Parameter& p = list.parameters[i];
      record.tensors.emplace_back("weight " + p.name, p.tensor.detach().clone());
      const train::ParameterShard mine = strategy.piece(i);
      if (!mine.tensor.defined()) continue;
      for (const auto& [name, state] : strategy.optimizer().state(mine.tensor)) {
        record.moments.emplace_back(name + " " + p.name, state.clone());
        record.begins[name + " " + p.name] = mine.begin;
      }
    }
  }
}

}  // namespace

RunRecord run_edge_case_model(dist::Communicator& communicator, const std::string& mode,
                              const RunOptions& options) {
  std::shared_ptr<EdgeCaseModel> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<EdgeCaseModel>();
  }
  nn::SeededValues values(options.same_seed ? 3 : 3 + communicator.rank());
  train::Registry registry;
  train::register_all_chapters(registry);
  RunRecord record;
  train::Strategy* running = nullptr;
  int step = 0;
  const optim::OptimizerFactory inner = optimizer_of(options);
  const auto factory = [&](const std::vector<at::Tensor>& parameters) {
    return std::unique_ptr<optim::Optimizer>(std::make_unique<Recorder>(
        inner(parameters), [&] { record_gradients(*running, step, record); }));
  };
  const auto strategy = registry.make(
      mode, {*model, communicator, factory, &values, "", options.ownership, options.accumulation});
  running = strategy.get();
  train::Trainer trainer(*strategy, {.clip_norm = options.clip_norm, .norm = options.norm});
  for (; step < options.steps; ++step) {
    std::vector<data::Batch> batches;
    for (int m = 0; m < options.micro_batches; ++m) {
      batches.push_back(edge_case_batch(17, communicator.rank(), step * options.micro_batches + m));
    }
    const train::StepResult result = trainer.step(batches);
    record.losses.push_back(result.loss);
    record.norms.push_back(result.gradient_norm);
  }
  record_end(*strategy, record);
  return record;
}

void expect_identical(const RunRecord& record, const RunRecord& reference,
                      const std::string& what) {
  std::map<std::string, at::Tensor> expected(reference.tensors.begin(), reference.tensors.end());
  expected.insert(reference.moments.begin(), reference.moments.end());
  std::size_t weights = 0;
  std::size_t gradients = 0;
  const auto compare = [&](const std::string& name, const at::Tensor& tensor) {
    ASSERT_TRUE(expected.contains(name)) << what << ": " << name;
    ASSERT_EQ(tensor.defined(), expected[name].defined()) << what << ": " << name;
    if (tensor.defined()) {
      const auto begin = record.begins.find(name);
      const at::Tensor other = expected[name].flatten().narrow(
          0, begin == record.begins.end() ? 0 : begin->second, tensor.numel());
      EXPECT_TRUE(at::equal(tensor.flatten(), other))
          << what << ": " << name << " differs by at most "
          << (tensor.flatten() - other).abs().max().item<double>();
    }
    weights += name.starts_with("weight") ? 1 : 0;
    gradients += name.starts_with("gradient") ? 1 : 0;
  };
  for (const auto& [name, tensor] : record.tensors) compare(name, tensor);
  for (const auto& [name, tensor] : record.moments) compare(name, tensor);
  EXPECT_EQ(weights, 17U) << what;
  EXPECT_EQ(record.losses, reference.losses) << what;
  EXPECT_EQ(record.norms, reference.norms) << what;
}

}  // namespace zero::testing
