#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::io {
namespace {

using safetensors::shape_text;
using safetensors::shown;
using safetensors::Spec;

// Why `given` cannot become `right`; empty if it can.
std::string misfit(const Spec& given, const Spec& right) {
  if (given.shape != right.shape) {
    return fmt::format("has the shape {}, the model's is {}", shape_text(given.shape),
                       shape_text(right.shape));
  }
  if (safetensors::convertible(given.dtype, right.dtype)) return "";
  return fmt::format("is {}, which is not converted to {}", c10::getDtypeNames(given.dtype).first,
                     c10::getDtypeNames(right.dtype).first);
}

// Eight lines of both kinds, because a prefix of all names makes two lists.
std::vector<std::string> first_of(std::vector<std::string> problems,
                                  std::vector<std::string> surplus) {
  constexpr std::size_t kShown = 4;
  const std::size_t all = problems.size() + surplus.size();
  problems.resize(std::min(problems.size(), 2 * kShown - std::min(surplus.size(), kShown)));
  surplus.resize(std::min(surplus.size(), 2 * kShown - problems.size()));
  problems.insert(problems.end(), surplus.begin(), surplus.end());
  if (all > problems.size()) problems.push_back(fmt::format("and {} more", all - problems.size()));
  return problems;
}

}  // namespace

std::vector<Spec> specs_of(const nn::ParameterList& list) {
  std::vector<Spec> specs;
  for (const nn::Parameter& p : list.parameters) {
    specs.push_back({p.name, p.tensor.scalar_type(), p.whole_sizes()});
  }
  return specs;
}

WeightsFit fit_weights(const std::string& what, const std::vector<Spec>& given,
                       const std::vector<Spec>& model, const WeightsFit& allowed,
                       const std::function<std::string(const std::string&)>& place) {
  WeightsFit fit;
  std::vector<std::string> problems, surplus;
  // `name` goes to `list` if it may, else it is a problem.
  const auto sort_in = [](const std::string& name, const std::vector<std::string>& may,
                          std::vector<std::string>& list, std::vector<std::string>& problems,
                          const std::string& problem) {
    std::ranges::count(may, name) > 0 ? list.push_back(name) : problems.push_back(problem);
  };
  std::map<std::string, Spec> found;
  for (const Spec& spec : given) {
    if (found.emplace(spec.name, spec).second) continue;
    problems.push_back(fmt::format("tensor {} is there twice", shown(spec.name)));
  }
  for (const Spec& right : model) {
    const auto at = found.find(right.name);
    if (at == found.end()) {
      sort_in(right.name, allowed.missing, fit.missing, problems,
              fmt::format("tensor {} is missing; the model has it with the shape {}",
                          shown(right.name), shape_text(right.shape)));
      continue;
    }
    if (const std::string problem = misfit(at->second, right); !problem.empty()) {
      problems.push_back(
          fmt::format("tensor {}{} {}", shown(right.name), place(right.name), problem));
    }
    found.erase(at);
  }
  for (const auto& [name, spec] : found) {
    sort_in(name, allowed.left_over, fit.left_over, surplus,
            fmt::format("tensor {}{} is none of the model's", shown(name), place(name)));
  }
  if (problems.empty() && surplus.empty()) return fit;
  throw Error(fmt::format("{} are not those of this model:\n  {}", what,
                          fmt::join(first_of(std::move(problems), std::move(surplus)), "\n  ")));
}

}  // namespace zero::io
