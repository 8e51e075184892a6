#pragma once

#include <cstdint>
#include <string>

namespace zero::tools {
class Registry;
}

namespace zero::step {

/// The program of a chapter: trains an MLP on toy data under the chapter's strategy, on forked
/// ranks, and prints per rank what it held and sent, next to the
/// formulas. With --memory-timeline it records what rank 0's allocator held along the last step.
/// With
/// --narrate it trains a far smaller model on 3 ranks and says after every phase of a step who
/// holds what. Returns the exit code.
///
/// `narrated_width`: inputs, outputs and hidden units of that model, which has two layers. A letter
/// of the narration stands for a quarter of a layer's weight: for one element if the width is 2,
/// as it is best; a chapter whose layout moves 64 elements at a time takes 16.
int run_demo(int argc, char** argv, const std::string& mode,
             void (*register_chapter)(tools::Registry&), std::int64_t narrated_width = 2);

}  // namespace zero::step
