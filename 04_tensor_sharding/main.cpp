// Trains a small MLP on a few ranks of this machine and prints what each rank held and sent.
//   build/release/bin/04_tensor_sharding --help
// and the tables of the lesson:
//   build/release/bin/04_tensor_sharding shares --help
//   build/release/bin/04_tensor_sharding gathers --help

#include <string_view>
#include <zero/train/demo.hpp>
#include <zero/train/registry.hpp>

#include "lesson.hpp"

namespace zero {
void register_tensor_sharding(train::Registry& registry);
}

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "shares") return zero::run_shares(argc - 1, argv + 1);
  if (first == "gathers") return zero::run_gathers(argc - 1, argv + 1);
  return zero::train::run_demo(argc, argv, "tensor_zero3", &zero::register_tensor_sharding,
                               /*narrated_width=*/16);
}
