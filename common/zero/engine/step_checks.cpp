#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/engine/step_checks.hpp>
#include <zero/train/loop/step.hpp>

namespace zero {
namespace {

constexpr std::string_view kRanks = "{ranks}";

// Throws the first problem of a rank, if any has one.
void throw_problem(dist::Communicator& world, const std::string& mine) {
  const std::vector<std::string> problems = world.exchange(mine);
  const auto first = std::ranges::find_if_not(problems, &std::string::empty);
  if (first == problems.end()) return;
  std::vector<int> ranks;
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r] == *first) ranks.push_back(world.world_rank(static_cast<int>(r)));
  }
  std::string text = *first;
  if (const std::size_t place = text.find(kRanks); place != std::string::npos) {
    text.replace(place, kRanks.size(), train::ranks_text(ranks));
  }
  throw Error(text);
}

}  // namespace

double Finding::digest() const { return problem.empty() ? base::fnv1a_as_double(state) : -1; }

void verify_findings(const dist::Mesh& mesh, const Finding& mine,
                     const std::vector<double>& digests, const std::string& what) {
  const bool wrong = !mine.problem.empty() || digests.front() < 0;
  if (!train::any_wrong(mesh, wrong, digests, mine.digest())) return;
  throw_problem(mesh.world(), mine.problem);
  mesh.verify_same_in_stage(what, mine.state);
}

StepChecks::StepChecks(train::Strategy& strategy, StepGradients& gradients)
    : strategy_(strategy),
      gradients_(gradients),
      registered_(strategy.model().module().parameters()) {}

Finding StepChecks::before_backward(const at::Tensor* loss) const {
  const std::vector<at::Tensor> now = strategy_.model().module().parameters();
  if (!std::ranges::equal(now, registered_, [](auto& a, auto& b) { return a.is_same(b); })) {
    return {
        "a layer or parameter of the model was added, replaced or taken out on {ranks} since the "
        "engine was made, which does not train what it has not seen: do that before the engine is "
        "made, or after release(), and make another"};
  }
  if (loss != nullptr) {
    if (!loss->defined() || !loss->requires_grad() || loss->numel() != 1 ||
        !loss->is_floating_point()) {
      return {
          "backward() of a loss that is not one real number with a gradient on {ranks}: take what "
          "forward() returned, or what was computed from it, without detach() or NoGradGuard"};
    }
    try {
      strategy_.passes().forwards().verify_fresh(*loss);
    } catch (const Error&) {
      return {
          "backward() of a loss whose forward() came before the last update, on {ranks}: its "
          "gradients would be those of weights that are gone; call forward() again after the "
          "update"};
    }
  }
  if (const std::string problem = problem_of_gradients(); !problem.empty()) return {problem};
  Finding found;
  const std::vector<bool> trainable = this->trainable();
  const auto& parameters = strategy_.list().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!trainable_.empty() && trainable[i] != trainable_[i]) {
      return {fmt::format(
          "parameter '{}' was frozen or unfrozen (requires_grad_()) on {} between two "
          "micro-batches of a step: do that before the first backward() of a step or after its "
          "last one",
          parameters[i].name, kRanks)};
    }
    found.state += fmt::format("parameter '{}' {}\n", parameters[i].name,
                               trainable[i] ? "trainable" : "frozen");
  }
  return found;
}

Finding StepChecks::before_update(const std::vector<at::Tensor>& losses, std::int64_t step,
                                  std::vector<double>& values) {
  if (const std::string problem = problem_of_gradients(); !problem.empty()) return {problem};
  gradients_.show();
  values = strategy_.averaged_gradients().read(losses);
  const bool finite = std::ranges::all_of(values, [](double v) { return std::isfinite(v); });
  if (!finite) return {train::loss_not_finite(step, std::string(kRanks))};
  return {"", gradients_.changes()};
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
      "the gradient of parameter '{}' was set or reset on {} between backward() and step(), by "
      "zero_grad() or otherwise, while the engine has it: give_up_step() drops the gradients of a "
      "step",
      strategy_.list().parameters[taken].name, kRanks);
}

}  // namespace zero
