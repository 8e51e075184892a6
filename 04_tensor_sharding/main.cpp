// Trains a small MLP on a few ranks of this machine and prints what each rank held and sent.
//   build/release/bin/04_tensor_sharding --help

#include <zero/train/demo.hpp>
#include <zero/train/registry.hpp>

namespace zero {
void register_tensor_sharding(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::train::run_demo(argc, argv, "tensor_zero3", &zero::register_tensor_sharding,
                               /*narrated_width=*/16);
}
