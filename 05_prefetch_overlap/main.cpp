// Trains a small MLP on a few ranks of this machine and prints what each rank held and sent.
//   build/release/bin/05_prefetch_overlap --help

#include <zero/train/demo.hpp>
#include <zero/train/registry.hpp>

namespace zero {
void register_prefetch_overlap(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::train::run_demo(argc, argv, "engine3", &zero::register_prefetch_overlap,
                               /*narrated_width=*/16);
}
