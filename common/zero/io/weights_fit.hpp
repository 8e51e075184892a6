#pragma once

#include <functional>
#include <string>
#include <vector>

#include <zero/nn/parameters.hpp>
#include <zero/safetensors/spec.hpp>

namespace zero::io {

/// Names of tensors in which weights differ from a model.
struct WeightsFit {
  std::vector<std::string> missing;    ///< the model has them, the weights do not
  std::vector<std::string> left_over;  ///< the weights have them, the model does not
};

/// Name, dtype and whole shape of each parameter.
std::vector<safetensors::Spec> specs_of(const nn::ParameterList& list);

/// Compares weights `given` with those of `model`; returns what differs and may differ.
/// @throws zero::Error if more is missing or left over than `allowed`, if a name is there twice, or
/// if a shape or dtype does not fit. It begins with `what`, such as "the weights in DIR", and names
/// at most eight tensors; `place` says where one is, such as " in FILE".
WeightsFit fit_weights(
    const std::string& what, const std::vector<safetensors::Spec>& given,
    const std::vector<safetensors::Spec>& model, const WeightsFit& allowed = {},
    const std::function<std::string(const std::string& name)>& place = [](const auto&) {
      return std::string();
    });

}  // namespace zero::io
