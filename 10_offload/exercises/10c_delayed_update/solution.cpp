#include "10c.hpp"

using exercise_10c::Rank;

void train_step(Rank& rank, bool delayed) {
  if (!delayed) {
    rank.device.compute();
    rank.host.start_update(rank.device.gradient);
    rank.host.wait();
    rank.device.weights.copy_(rank.host.weights());
    return;
  }
  // The first delayed step has no gradient of the step before: that was used at once.
  if (rank.kept.defined()) rank.host.start_update(rank.kept);
  rank.device.compute();
  rank.host.wait();
  rank.device.weights.copy_(rank.host.weights());
  rank.kept = rank.device.gradient.clone();
}

void finish(Rank& rank) {
  if (!rank.kept.defined()) return;
  rank.host.start_update(rank.kept);
  rank.host.wait();
  rank.device.weights.copy_(rank.host.weights());
  rank.kept.reset();
}
