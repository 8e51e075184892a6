#include <ATen/ops/_foreach_mul.h>
#include <fmt/format.h>

#include <cmath>

#include <zero/base/error.hpp>
#include <zero/optim/optimizer.hpp>

namespace zero::optim {

void Optimizer::load_state(const at::Tensor&, std::int64_t,
                           const std::map<std::string, at::Tensor>&) {
  throw Error(
      "this optimizer cannot take back a saved state; our own and those of optim::wrap() can");
}

std::map<std::string, at::ScalarType> Optimizer::state_types(const at::Tensor& parameter) const {
  std::map<std::string, at::ScalarType> types;
  for (const auto& [name, state] : this->state(parameter)) types[name] = state.scalar_type();
  return types;
}

std::int64_t Optimizer::state_bytes(const at::Tensor& parameter) const {
  return 2 * static_cast<std::int64_t>(parameter.nbytes());
}

void Optimizer::set_gradient_scale(double scale) {
  if (scale == 1.0) return;
  throw Error(
      fmt::format("this optimizer takes gradients as they are, not {} times as large: give "
                  "it fp32 master weights (optim::with_master_weights)",
                  scale));
}

void Optimizer::scale_gradients(const std::vector<at::Tensor>& gradients, double factor) {
  at::_foreach_mul_(gradients, factor);
}

void Optimizer::set_learning_rates(const std::vector<double>& rates) {
  check_rates(rates, 1);
  set_learning_rate(rates.front());
}

void Optimizer::check_rates(const std::vector<double>& rates, std::size_t groups) {
  if (rates.size() != groups) {
    throw Error(fmt::format("{} learning rates for an optimizer with {} parameter groups",
                            rates.size(), groups));
  }
  for (const double rate : rates)
    check_settings({.kind = "", .groups = {{{"learning_rate", rate}}}});
}

void check_settings(const Optimizer::Settings& settings) {
  for (const auto& group : settings.groups) {
    for (const auto& [name, value] : group) {
      const bool is_beta = name == "beta1" || name == "beta2";
      const bool checked =
          is_beta || name == "learning_rate" || name == "weight_decay" || name == "epsilon";
      if (!checked || (value >= 0 && std::isfinite(value) && (!is_beta || value < 1))) continue;
      throw Error(fmt::format("the optimizer's {} is {}; it must be a number from 0{}", name, value,
                              is_beta ? " to below 1" : ""));
    }
  }
}

}  // namespace zero::optim
