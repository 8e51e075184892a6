#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::train {

/// The error text for reading one of `members` while it is not whole on this rank: it names them,
/// their unit, and the scope to hold. `members`: parameters of one unit with one storage.
std::string unsharded_read(const nn::ParameterList& list, const std::vector<std::size_t>& members);

/// The same for an access to the gradient of parameter `name` while its engine hides it.
std::string hidden_gradient_access(const std::string& name);
/// The same for reading parameter `name` after `holder`, which had its values, was destroyed.
std::string read_without_holder(const std::string& name, const std::string& holder);

/// Whether LibTorch threw `error` with one of these texts.
bool is_unsharded_read(const c10::Error& error);

/// Runs `action`; rethrows such an error as zero::Error, without LibTorch's backtrace.
template <typename Action>
decltype(auto) naming_unsharded_reads(Action&& action) {
  try {
    return std::forward<Action>(action)();
  } catch (const c10::Error& error) {
    if (!is_unsharded_read(error)) throw;
    throw Error(error.msg());
  }
}

}  // namespace zero::train
