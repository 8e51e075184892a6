#pragma once

#include <string>

#include "zero/train/registry.hpp"

namespace zero::train {

/// The program of a chapter: trains an MLP on toy data under the chapter's strategy, on forked
/// ranks or as one rank of a launcher, and prints per rank what it held and sent, next to the
/// formulas. With --narrate it trains a model of 12 parameters on 3 ranks instead and says after
/// every phase of a step who holds what. Returns the exit code.
int run_demo(int argc, char** argv, const std::string& mode, void (*register_chapter)(Registry&));

}  // namespace zero::train
