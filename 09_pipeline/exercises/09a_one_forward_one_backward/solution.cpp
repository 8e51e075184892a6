#include "09a.hpp"

using exercise_09a::Action;
using exercise_09a::Kind;

std::vector<Action> actions(int stage, int stages, int micro_batches) {
  const int ahead = std::min(stages - stage - 1, micro_batches);
  std::vector<Action> all;
  for (int m = 0; m < ahead; ++m) all.push_back({Kind::kForward, m});
  for (int m = ahead; m < micro_batches; ++m) {
    all.push_back({Kind::kForward, m});
    all.push_back({Kind::kBackward, m - ahead});
  }
  for (int m = micro_batches - ahead; m < micro_batches; ++m) all.push_back({Kind::kBackward, m});
  return all;
}
