// What this chapter's modes hold, send and take: ./run bench prefetch_overlap

#include <tests/bench/bench.hpp>

namespace zero {
void register_prefetch_overlap(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::bench::run_chapter(argc, argv, &zero::register_prefetch_overlap);
}
