// What this chapter's modes hold, send and take: ./run bench zero2

#include <tests/bench/bench.hpp>

namespace zero {
void register_zero2(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::bench::run_chapter(argc, argv, &zero::register_zero2);
}
