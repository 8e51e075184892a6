#include "05f.hpp"

using exercise_05f::Layer;
using exercise_05f::Transfer;

// Gathers in the order of need, those of the last `stay` layers once. Reductions give way to the
// gathers of `ahead` layers.
std::vector<Transfer> in_order(int layers, int stay, int ahead) {
  std::vector<Transfer> plan;
  for (int layer = 0; layer < layers; ++layer) plan.push_back({Transfer::kGather, layer});
  int again = layers - 1 - stay;
  for (int layer = layers - 1; layer >= 0; --layer) {
    for (; again >= std::max(layer - ahead, 0); --again) plan.push_back({Transfer::kGather, again});
    plan.push_back({Transfer::kReduce, layer});
  }
  return plan;
}

std::vector<Transfer> schedule(const std::vector<Layer>& layers, double limit) {
  const auto count = static_cast<int>(layers.size());
  std::vector<Transfer> best;
  double least = exercise_05f::kNever;
  for (int stay = 0; stay <= count; ++stay) {
    for (int ahead = 0; ahead <= count; ++ahead) {
      const std::vector<Transfer> plan = in_order(count, stay, ahead);
      const double ms = exercise_05f::play(layers, limit, plan).ms;
      if (ms >= least) continue;
      least = ms;
      best = plan;
    }
  }
  return best;
}
