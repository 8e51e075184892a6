// What this chapter's modes hold, send and take: ./run bench simple_ddp

#include <tests/bench/bench.hpp>

namespace zero {
void register_simple_ddp(train::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::bench::run_chapter(argc, argv, &zero::register_simple_ddp);
}
