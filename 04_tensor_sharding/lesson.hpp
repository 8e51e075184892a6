#pragma once

namespace zero {

/// What step 04 shares of the script prints: the bytes of each rank at 2, 4, 8 and 16 ranks, where
/// whole parameters are dealt out and where every tensor is split, and how many elements of padding
/// that takes with one buffer a unit and with one a parameter. Sizes only: nothing is allocated, no
/// rank is started. Option json writes them for common/report/plot_shares.py and draws the picture.
/// Returns the exit code of the program.
int run_shares(int argc, char** argv);

/// What step 04 gathers of the script prints: a forward and a backward under tensor_zero3:leaf,
/// :per_parameter, tensor_zero3 and :whole on ranks of this machine, and for each the number of
/// gathers, the peak of parameters that were whole and the peak of gradients. Returns the exit code
/// of the program.
int run_gathers(int argc, char** argv);

}  // namespace zero
