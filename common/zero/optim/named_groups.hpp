#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace zero::optim {

/// Chooses the group of a parameter, an index, by its dotted path in the module and its shape.
using GroupRule = std::function<std::size_t(const std::string& name, const at::Tensor& parameter)>;

/// The members of each of `groups` groups, in the order of `parameters`: some of the module's,
/// which have the names `named`. A tied parameter has its first name. Acts on this rank alone; a
/// strategy compares the groups of all ranks.
/// @throws zero::Error for a parameter that the module does not have, and, by its name, for one
/// for which the rule chooses a group that there is not.
std::vector<std::vector<at::Tensor>> split_by_name(
    const torch::OrderedDict<std::string, at::Tensor>& named,
    const std::vector<at::Tensor>& parameters, std::size_t groups, const GroupRule& rule);

}  // namespace zero::optim
