// Trains a small MLP on a few ranks of this machine and prints what each rank held and sent.
//   build/release/bin/00_simple_ddp --help

#include <zero/train/demo.hpp>
#include <zero/train/registry.hpp>

namespace zero {
void register_simple_ddp(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::train::run_demo(argc, argv, "ddp", &zero::register_simple_ddp);
}
