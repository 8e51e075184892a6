#pragma once

#include <memory>
#include <utility>

#include <zero/nn/defer.hpp>

namespace zero::testing {

/// A model whose parameters have no storage yet: the strategy gives them some.
template <typename Model, typename... Arguments>
std::shared_ptr<Model> make_deferred(Arguments&&... arguments) {
  return nn::defer([&] { return std::make_shared<Model>(std::forward<Arguments>(arguments)...); });
}

}  // namespace zero::testing
