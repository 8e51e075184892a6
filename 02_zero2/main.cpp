// Trains a small MLP on a few ranks of this machine and prints what each rank held and sent.
//   build/release/bin/02_zero2 --help

#include <zero/train/demo.hpp>
#include <zero/train/registry.hpp>

namespace zero {
void register_zero2(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::train::run_demo(argc, argv, "zero2", &zero::register_zero2);
}
