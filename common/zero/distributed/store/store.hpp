#pragma once

// Private to common/zero/distributed: what ranks meet in.

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace zero::dist {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

}  // namespace zero::dist
