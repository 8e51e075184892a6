#pragma once

#include <functional>
#include <string>
#include <zero/train/registry.hpp>

namespace zero::bench {

/// The main program of a chapter's benchmarks: for every mode that `register_chapter` adds, what a
/// rank holds and sends, and what a step takes, on ranks forked for it. Flags: --nproc N (2),
/// --model NAME (tiny), --steps N (8), and those of Google Benchmark. Exit code 1 if ranks failed.
///
/// Google Benchmark chooses how often to repeat by time, which differs between ranks. So each
/// benchmark is one iteration with a time of its own: the median step of the slowest rank.
int run_chapter(int argc, char** argv, void (*register_chapter)(train::Registry&));

}  // namespace zero::bench
