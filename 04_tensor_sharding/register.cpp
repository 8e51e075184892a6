// The names under which the ladder, the tests and the benchmarks find the strategies of this
// chapter.
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/train/registry.hpp>

#include "tensor_zero1.hpp"
#include "tensor_zero2.hpp"
#include "tensor_zero3.hpp"

namespace zero {

// The first variant of each list is the default.
void register_tensor_sharding(train::Registry& registry) {
  const auto add = [&]<typename Stage>(const char* name, std::vector<std::string> variants,
                                       std::type_identity<Stage>) {
    registry.add({name, "04_tensor_sharding", std::move(variants),
                  [](const auto& arguments) { return std::make_unique<Stage>(arguments); }});
  };
  add("tensor_zero1", {"flat", "per_parameter", "naive"}, std::type_identity<TensorZero1>{});
  add("tensor_zero2", {"flat", "per_parameter"}, std::type_identity<TensorZero2>{});
  add("tensor_zero3", {"flat", "per_parameter", "leaf", "whole"},
      std::type_identity<TensorZero3>{});
}

}  // namespace zero
