#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/step_checks.hpp>
#include <zero/train/held_model.hpp>

namespace zero {

StepChecks::StepChecks(train::Strategy& strategy, StepGradients& gradients)
    : strategy_(strategy), gradients_(gradients), registered_(strategy.module().parameters()) {}

dist::Statement StepChecks::before_backward(const at::Tensor& loss) const {
  std::string trained;
  for (const nn::Parameter& p : strategy_.list().parameters) {
    trained += fmt::format("parameter '{}' {}\n", p.name,
                           p.tensor.requires_grad() ? "trainable" : "frozen");
  }
  return {problem_of_backward(loss), {{"which parameters are trained", trained}}};
}

// Empty if there is none.
std::string StepChecks::problem_of_backward(const at::Tensor& loss) const {
  std::string wrong = train::under_inference_mode("backward() on {ranks}");
  if (!wrong.empty()) return wrong;
  const std::vector<at::Tensor> now = strategy_.module().parameters();
  if (!std::ranges::equal(now, registered_, [](auto& a, auto& b) { return a.is_same(b); })) {
    return "a layer or parameter of the model was added, replaced or taken out on {ranks} since "
           "the engine was made, which does not train what it has not seen: do that before the "
           "engine is made, or after release(), and make another";
  }
  const auto trains = [](const nn::Parameter& p) { return p.tensor.requires_grad(); };
  if (std::ranges::none_of(strategy_.list().parameters, trains)) {
    return "backward() on {ranks} of a model whose parameters are all frozen: evaluate() it, or "
           "unfreeze some on all ranks";
  }
  if (!loss.defined() || !loss.requires_grad() || loss.numel() != 1 || !loss.is_floating_point()) {
    return "backward() of a loss that is not one real number with a gradient on {ranks}: take what "
           "forward() returned, or what was computed from it, without detach() or NoGradGuard";
  }
  if (!strategy_.passes().forwards().is_fresh(loss)) {
    return "backward() of a loss whose forward() came before the last update, on {ranks}: its "
           "gradients would be those of weights that are gone; call forward() again after the "
           "update";
  }
  const std::vector<bool> trainable = this->trainable();
  const auto& parameters = strategy_.list().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!trainable_.empty() && trainable[i] != trainable_[i]) {
      return fmt::format(
          "parameter '{}' was frozen or unfrozen (requires_grad_()) on {{ranks}} between two "
          "micro-batches of a step: do that before the first backward() of a step or after its "
          "last one",
          parameters[i].name);
    }
  }
  return problem_of_gradients();
}

dist::Statement StepChecks::before_update(const std::vector<at::Tensor>& losses,
                                          std::vector<double>& values) {
  dist::Statement found{problem_of_gradients(),
                        {{"what was done to gradients between backward() and step()", ""}}};
  if (found.problem.empty()) found.problem = train::under_inference_mode("step() on {ranks}");
  if (!found.problem.empty()) return found;
  gradients_.show();
  values = strategy_.averaged_gradients().read(losses);
  found.topics[0].text = gradients_.changes();
  return found;
}

std::vector<bool> StepChecks::trainable() const {
  std::vector<bool> trainable;
  for (const nn::Parameter& p : strategy_.list().parameters) {
    trainable.push_back(p.tensor.requires_grad());
  }
  return trainable;
}

// Empty if the program has left hidden gradients alone.
std::string StepChecks::problem_of_gradients() const {
  const std::size_t taken = gradients_.first_taken();
  if (taken == strategy_.list().size()) return "";
  return fmt::format(
      "the gradient of parameter '{}' was set or reset on {{ranks}} between backward() and step(), "
      "by "
      "zero_grad() or otherwise, while the engine has it: give_up_step() drops the gradients of a "
      "step",
      strategy_.list().parameters[taken].name);
}

}  // namespace zero
