#pragma once

namespace zero {

/// What step 04 shares of the script prints: the bytes of each rank at 2, 4, 8 and 16 ranks, where
/// whole parameters are dealt out and where every tensor is split. Sizes only: nothing is
/// allocated, no rank is started. Option json writes them for common/report/plot_shares.py and
/// draws the picture. Returns the exit code of the program.
int run_shares(int argc, char** argv);

/// What step 04 gathers of the script prints: a forward and a backward under tensor_zero3:leaf,
/// tensor_zero3 and tensor_zero3:whole on ranks of this machine, and for each the number of gathers
/// and the peak of parameters that were whole. Returns the exit code of the program.
int run_gathers(int argc, char** argv);

}  // namespace zero
