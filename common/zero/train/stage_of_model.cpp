#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/train/stage_of_model.hpp>

namespace zero::train {

StageOfModel::StageOfModel(const nn::ParameterList& list, const nn::WholeModel* whole)
    : whole_(whole != nullptr ? whole->list : list), copy_(list.size()) {
  const auto begin = whole_.parameters.begin(), end = whole_.parameters.end();
  auto found = begin;  // both are in the same order
  for (std::size_t i = 0; i < list.size(); ++i) {
    const nn::Parameter& p = list.parameters[i];
    found = std::ranges::find(found, end, p.name, &nn::Parameter::name);
    if (found == end) {
      throw Error(fmt::format(
          "parameter '{}' of this stage is not in the whole model, or in another order", p.name));
    }
    places_.push_back(static_cast<std::size_t>(found - begin));
    if (whole != nullptr && p.tensor.is_same(whole->copy)) copy_ = i;
  }
}

}  // namespace zero::train
