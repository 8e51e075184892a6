// The names under which the ladder, the tests and the benchmarks find the strategies of this
// chapter.
#include <zero/train/registry.hpp>

#include "tensor_zero1.hpp"
#include "tensor_zero2.hpp"
#include "tensor_zero3.hpp"

namespace zero {

void register_tensor_sharding(train::Registry& registry) {
  const char* const chapter = "04_tensor_sharding";
  registry.add<TensorZero1>("tensor_zero1", chapter, {"flat", "per_parameter", "naive"});
  registry.add<TensorZero2>("tensor_zero2", chapter, {"flat", "per_parameter"});
  registry.add<TensorZero3>("tensor_zero3", chapter, {"flat", "per_parameter", "whole"});
}

}  // namespace zero
