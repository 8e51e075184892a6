#include "07a.hpp"

using exercise_07a::Ranks;
using exercise_07a::Weight;
using zero::dist::Communicator;

// Piece `rank` of as many equal ones as `ranks` has, in memory of its own.
at::Tensor piece_of(const at::Tensor& whole, const Communicator& ranks) {
  const auto elements = whole.numel() / ranks.size();
  return whole.narrow(0, ranks.rank() * elements, elements).clone();
}

at::Tensor gathered(Communicator& ranks, const at::Tensor& piece) {
  const at::Tensor whole = at::empty({ranks.size() * piece.numel()});
  ranks.all_gather(whole, piece, zero::dist::Purpose::kParameter).wait();
  return whole;
}

at::Tensor forward_weight(Ranks ranks, Weight& weight, int step) {
  const at::Tensor whole = gathered(ranks.world, weight.primary);
  if (!weight.secondary.defined()) weight.secondary = piece_of(whole, ranks.group);
  return whole;
}

at::Tensor backward_weight(Ranks ranks, Weight& weight) {
  return gathered(ranks.group, weight.secondary);
}

void update(Ranks ranks, Weight& weight, const at::Tensor& gradient) {
  weight.secondary.reset();  // it is of the weight as it was
  weight.primary -= exercise_07a::kLearningRate * gradient;
}

void load(Ranks ranks, Weight& weight, const at::Tensor& saved) {
  weight.secondary.reset();
  weight.primary = piece_of(saved, ranks.world);
}
