#pragma once

#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/optim/optimizer.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::testing {

/// Another optimizer with a function before every update.
class HookedOptimizer : public optim::Optimizer {
 public:
  HookedOptimizer(std::unique_ptr<optim::Optimizer> inner, std::function<void()> before_step)
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

 protected:
  std::unique_ptr<optim::Optimizer> inner_;

 private:
  std::function<void()> before_step_;
};

inline optim::OptimizerFactory hooked(const optim::OptimizerFactory& inner,
                                      const std::function<void()>& before_step) {
  return [=](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<HookedOptimizer>(inner(parameters), before_step);
  };
}

/// The same, and it says what it is and takes states back.
inline optim::OptimizerFactory hooked_with_states(const optim::OptimizerFactory& inner,
                                                  const std::function<void()>& before_step) {
  struct WithStates final : HookedOptimizer {
    using HookedOptimizer::HookedOptimizer;
    Settings settings() const override { return inner_->settings(); }
    bool can_offload() const override { return inner_->can_offload(); }
    void load_state(const at::Tensor& p, std::int64_t steps,
                    const std::map<std::string, at::Tensor>& states) override {
      inner_->load_state(p, steps, states);
    }
  };
  return [=](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<WithStates>(inner(parameters), before_step);
  };
}

/// An optimizer of LibTorch's.
template <typename Optimizer, typename Options>
optim::OptimizerFactory wrapped(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return optim::wrap(std::make_unique<Optimizer>(parameters, options));
  };
}

inline optim::OptimizerFactory sgd(double learning_rate = 0.01, double momentum = 0.9) {
  return wrapped<torch::optim::SGD>(torch::optim::SGDOptions(learning_rate).momentum(momentum));
}

}  // namespace zero::testing
