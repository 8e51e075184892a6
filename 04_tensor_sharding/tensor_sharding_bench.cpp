// What this chapter's modes hold, send and take: ./run bench tensor_sharding

#include <tests/bench/bench.hpp>

namespace zero {
void register_tensor_sharding(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::bench::run_chapter(argc, argv, &zero::register_tensor_sharding);
}
