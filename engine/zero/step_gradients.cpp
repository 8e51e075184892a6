#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/storage.hpp>
#include <zero/step_gradients.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero {

void StepGradients::hide() {
  gradients_.resize(list_.size());
  shown_.resize(list_.size());
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const nn::Parameter& p = list_.parameters[i];
    if (!shown_[i].defined()) {
      shown_[i] =
          memory::without_storage(p.tensor.sizes(), p.tensor.scalar_type(), p.tensor.device());
      memory::release_storage(shown_[i], train::hidden_gradient_access(p.name));
    }
    gradients_[i] = std::exchange(p.tensor.mutable_grad(), shown_[i]);
  }
}

void StepGradients::show() {
  if (!versions_.empty()) return;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    list_.parameters[i].tensor.mutable_grad() = std::move(gradients_[i]);
  }
  gradients_.clear();
}

void StepGradients::call(train::Strategy& strategy, const GradientCallback& callback) {
  dist::run_on_all_ranks(strategy.mesh().world(), "the callback of on_gradients()", [&] {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      const train::ParameterShard& mine = strategy.placement(i).updated;
      if (!mine.tensor.defined() || !mine.tensor.grad().defined()) continue;
      callback(strategy.list().parameters[i].name, mine.tensor.grad().view({-1}), mine.begin);
    }
  });
  strategy.averaged_gradients().changed();
}

at::Tensor StepGradients::whole(train::Strategy& strategy, const std::string& name) {
  const auto found = std::ranges::find_if(list_.parameters, [&](const nn::Parameter& p) {
    return p.name == name && p.tensor.requires_grad();
  });
  if (found == list_.parameters.end()) {
    throw Error(fmt::format("the model has no trainable parameter '{}'", name));
  }
  // Each element comes from the one rank of the group that updates it; the others add zeros.
  const at::Tensor whole =
      at::zeros({found->tensor.numel()}, found->tensor.options().requires_grad(false));
  const train::ParameterShard& mine =
      strategy.placement(static_cast<std::size_t>(found - list_.parameters.begin())).updated;
  const bool hidden = versions_.empty();  // at stage 0 that of the parameter itself
  show();
  if (mine.tensor.defined() && mine.tensor.grad().defined()) {
    whole.narrow(0, mine.begin, mine.tensor.numel()).copy_(mine.tensor.grad().flatten());
  }
  if (hidden) hide();
  if (dist::Communicator* const group = strategy.placements().group) {
    group->all_reduce(whole, dist::Purpose::kParameter, {dist::ReduceOp::kSum}).wait();
  }
  return whole.view(found->tensor.sizes());
}

void StepGradients::watch() {
  std::vector<at::Tensor> gradients;  // both or neither: a tensor may have no version
  std::vector<std::uint32_t> versions;
  for (const nn::Parameter& p : list_.parameters) {
    gradients.push_back(p.tensor.grad());
    versions.push_back(p.tensor.grad().defined() ? p.tensor.grad()._version() : 0);
  }
  gradients_ = std::move(gradients);
  versions_ = std::move(versions);
}

void StepGradients::forget() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (versions_.empty() && is_hidden(i)) list_.parameters[i].tensor.mutable_grad().reset();
  }
  gradients_.clear();
  versions_.clear();
}

std::size_t StepGradients::first_taken() const {
  for (std::size_t i = 0; versions_.empty() && i < gradients_.size(); ++i) {
    if (!is_hidden(i)) return i;
  }
  return list_.size();
}

std::string StepGradients::changes() const {
  std::string changes;
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    const nn::Parameter& p = list_.parameters[i];
    const at::Tensor& now = p.tensor.grad();
    if (!now.is_same(gradients_[i])) {
      changes += fmt::format("'{}' {}\n", p.name, now.defined() ? "set" : "reset");
    } else if (now.defined() && now._version() != versions_[i]) {
      // Gradients of one bucket share a counter.
      changes +=
          fmt::format("{} changes in the bucket of '{}'\n", now._version() - versions_[i], p.name);
    }
  }
  return changes;
}

bool StepGradients::is_hidden(std::size_t index) const {
  return list_.parameters[index].tensor.grad().is_same(shown_[index]);
}

}  // namespace zero
