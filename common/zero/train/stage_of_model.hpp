#pragma once

#include <cstddef>
#include <vector>

#include <zero/nn/parameters.hpp>

namespace zero::train {

/// Where the parameters of a strategy are in the whole model: the strategy's own model or, if that
/// is a stage of a pipeline, the one that it is cut from.
class StageOfModel {
 public:
  /// `list` is that of the strategy's model, `whole` null if it is no stage. Both must outlive this
  /// object.
  StageOfModel(const nn::ParameterList& list, const nn::WholeModel* whole);

  /// The parameters of the whole model, in its order.
  const nn::ParameterList& whole() const { return whole_; }
  /// The place of the strategy's parameter `index` in whole().
  std::size_t place(std::size_t index) const { return places_[index]; }
  /// Whether another stage trains the strategy's parameter `index`, of which this one has a copy.
  bool is_copy(std::size_t index) const { return index == copy_; }

 private:
  const nn::ParameterList& whole_;
  std::vector<std::size_t> places_;
  std::size_t copy_;  // none: the number of parameters
};

}  // namespace zero::train
