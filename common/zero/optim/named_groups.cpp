#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/optim/named_groups.hpp>

namespace zero::optim {

std::vector<std::vector<at::Tensor>> split_by_name(
    const torch::OrderedDict<std::string, at::Tensor>& named,
    const std::vector<at::Tensor>& parameters, std::size_t groups, const GroupRule& rule) {
  std::vector<std::pair<std::string, at::Tensor>> all;  // a tied parameter once
  const auto place_of = [&all](const at::Tensor& p) {
    return std::ranges::find_if(all, [&](const auto& known) { return known.second.is_same(p); });
  };
  for (const auto& item : named) {
    if (place_of(item.value()) == all.end()) all.emplace_back(item.key(), item.value());
  }
  std::vector<std::vector<at::Tensor>> result(groups);
  for (const at::Tensor& parameter : parameters) {
    const auto found = place_of(parameter);
    if (found == all.end()) {
      throw Error("groups by name: a parameter of the model is not one of the module's");
    }
    const std::size_t group = rule(found->first, parameter);
    if (group >= groups) {
      throw Error(fmt::format("parameter '{}' in group {}, and there are {}, from 0", found->first,
                              group, groups));
    }
    result[group].push_back(parameter);
  }
  return result;
}

}  // namespace zero::optim
