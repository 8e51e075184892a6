#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/muon.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {
namespace {

constexpr const char* kMomentum = "momentum_buffer";

struct MatrixSlot {
  at::Tensor parameter;
  std::int64_t steps = 0;
  at::Tensor momentum = {};  // flat; made in the first update
};

// U V' for matrix = U S V', nearly: each step of Newton and Schulz applies an odd polynomial to the
// singular values, which are at most 1 at first. Jordan's coefficients lift small ones fastest, and
// leave all near 1 instead of at 1.
at::Tensor orthogonal(const at::Tensor& matrix) {
  if (matrix.size(0) > matrix.size(1)) return orthogonal(matrix.t()).t();  // x x' is smaller so
  at::Tensor x = matrix / (matrix.norm() + 1e-7);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor a = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.matmul(a)).matmul(x);
  }
  return x;
}

// The matrices are this object's, all else is AdamW's, whose group 0 is left empty.
class Muon final : public Optimizer {
 public:
  Muon(const std::vector<at::Tensor>& parameters, const MuonOptions& options,
       std::unique_ptr<Optimizer> adamw)
      : options_(options), adamw_(std::move(adamw)) {
    for (const at::Tensor& p : parameters) {
      if (adamw_->group_of(p) == 0) matrices_.add({p});
    }
    adamw_->narrow([this](const at::Tensor& p) { return matrices_.find(p) == nullptr; });
  }

  void step() override {
    const at::NoGradGuard no_grad;
    for (MatrixSlot& slot : matrices_) {
      if (slot.parameter.grad().defined()) update(slot);
    }
    adamw_->step();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    matrices_.replace(with, [](MatrixSlot& slot, const at::Tensor& other) { slot = {other}; });
    adamw_->replace(with);
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    const MatrixSlot* const slot = matrices_.find(parameter);
    if (slot == nullptr) return adamw_->state(parameter);
    if (!slot->momentum.defined()) return {};
    return {{kMomentum, slot->momentum}};
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const MatrixSlot* const slot = matrices_.find(parameter);
    return slot == nullptr ? adamw_->steps(parameter) : slot->steps;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    return matrices_.find(parameter) == nullptr ? adamw_->state_bytes(parameter)
                                                : static_cast<std::int64_t>(parameter.nbytes());
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    MatrixSlot* const slot = matrices_.find(parameter);
    if (slot == nullptr) return adamw_->load_state(parameter, steps, states);
    const auto found = states.find(kMomentum);
    const at::Tensor momentum = found == states.end() ? at::Tensor() : found->second;
    const bool fits = momentum.defined() && momentum.dim() == 1 &&
                      momentum.numel() == parameter.numel() &&
                      momentum.scalar_type() == parameter.scalar_type();
    if (steps == 0 ? !states.empty() : !fits || states.size() != 1) {
      throw Error(
          fmt::format("a matrix after {} updates of Muon needs the state {}, of {} elements", steps,
                      kMomentum, parameter.numel()));
    }
    *slot = {parameter, steps, momentum};
  }

  Settings settings() const override {
    Settings all{"Muon", adamw_->settings().groups};
    all.groups.front() = {{"learning_rate", options_.learning_rate},
                          {"momentum", options_.momentum},
                          {"weight_decay", options_.weight_decay},
                          {"as_large_as_adamw", options_.as_large_as_adamw}};
    return all;
  }

  void set_learning_rate(double rate) override { set_learning_rates({rate, rate}); }
  void set_learning_rates(const std::vector<double>& rates) override {
    adamw_->set_learning_rates(rates);
    options_.learning_rate = rates.front();
  }

  std::size_t group_of(const at::Tensor& parameter) const override {
    return matrices_.find(parameter) == nullptr ? adamw_->group_of(parameter) : 0;
  }

  bool needs_whole() const override { return true; }

 private:
  void update(MatrixSlot& slot) const {
    const at::Tensor matrix = memory::raw(slot.parameter), gradient = slot.parameter.grad();
    if (!slot.momentum.defined()) {
      const memory::Charge charge(memory::Category::kOptimizer);
      slot.momentum = at::zeros({matrix.numel()}, matrix.options());
    }
    ++slot.steps;
    const at::Tensor momentum = slot.momentum.view(matrix.sizes());
    momentum.mul_(options_.momentum).add_(gradient);
    const double longer = std::sqrt(std::max(matrix.size(0), matrix.size(1)));
    const double factor =
        options_.as_large_as_adamw ? 0.2 * longer : longer / std::sqrt(matrix.size(1));
    matrix.mul_(1 - options_.learning_rate * options_.weight_decay);
    matrix.sub_(orthogonal(gradient.add(momentum, options_.momentum)),
                options_.learning_rate * factor);
  }

  MuonOptions options_;
  Slots<MatrixSlot> matrices_;
  std::unique_ptr<Optimizer> adamw_;
};

}  // namespace

std::size_t hidden_matrices(const std::string& name, const at::Tensor&) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("embed") || has("wte") || has("wpe") || has("head") || has("score");
}

OptimizerFactory muon(const torch::nn::Module& module, MuonOptions matrices, AdamWOptions others,
                      GroupRule rule) {
  const auto make = adamw(module, {others, others}, [rule = std::move(rule)](auto& name, auto& p) {
    return p.dim() == 2 ? rule(name, p) : 1;
  });
  return [make, matrices](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Muon>(parameters, matrices, make(parameters));
  };
}

}  // namespace zero::optim
