#pragma once

#include <limits>
#include <string>
#include <vector>

namespace exercise_05f {

/// A layer that is cut over ranks.
struct Layer {
  double forward, backward;  ///< ms that it computes for
  double wire;               ///< ms that its gather takes, and its reduction
  double size;               ///< MiB of the whole layer
};

/// A gather or a reduction.
struct Transfer {
  enum Kind { kGather, kReduce } kind;
  int layer;
  int after = 0;  ///< waits until so many passes of layers have ended: L forward, then L backward
};

/// For pictures: a digit names the layer of a pass or a gather, a letter (a: 0) that of a
/// reduction.
struct Span {
  char mark;
  double begin, end;
};

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Step {
  double ms = kNever;      ///< until everything has ended
  std::string stuck = {};  ///< why it never does
  std::vector<Span> computing = {}, wire = {};
};

/// Plays a step: layers 0 to L - 1 forward, then L - 1 to 0 backward. A layer computes when it is
/// whole. The wire carries the transfers of `plan` in their order, one at a time:
///   - a gather begins when the layer is not there, and has room: from its begin on the layer takes
///     its size, and all together take no more than `limit` MiB;
///   - a reduction begins when the backward of its layer has ended.
/// After its forward a layer leaves if the plan gathers it again, else it stays. In backward its
/// gradient takes its place, which is free when the reduction has ended. (The game leaves out that
/// a weight and its gradient are there together.)
Step play(const std::vector<Layer>& layers, double limit, const std::vector<Transfer>& plan);

/// What an answer consists of.
struct Answer {
  std::vector<Transfer> (*schedule)(const std::vector<Layer>& layers, double limit);
};

}  // namespace exercise_05f
