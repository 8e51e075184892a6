// The names of this chapter's modes.
#include <04_tensor_sharding/tensor_zero1.hpp>
#include <04_tensor_sharding/tensor_zero2.hpp>
#include <04_tensor_sharding/tensor_zero3.hpp>
#include <tools/ladder/registry.hpp>

namespace zero {

void register_tensor_sharding(tools::Registry& registry) {
  const char* const chapter = "04_tensor_sharding";
  registry.add<TensorZero1>("tensor_zero1", chapter, {"flat", "per_parameter", "naive"});
  registry.add<TensorZero2>("tensor_zero2", chapter, {"flat", "per_parameter"});
  registry.add<TensorZero3>("tensor_zero3", chapter, {"flat", "per_parameter", "whole"});
}

}  // namespace zero
