// expects: holds 23040 bytes of states, where 12P/N are 11520: it needs those of its own shard
#include "04c.hpp"

using exercise_04c::adamw;
using exercise_04c::State;
using zero::dist::Communicator;
using zero::dist::Purpose;

at::Tensor shard_of(const Communicator& communicator, const at::Tensor& flat) {
  const std::int64_t each = flat.numel() / communicator.size();
  return flat.narrow(0, communicator.rank() * each, each);
}

State make_state(Communicator& communicator, const at::Tensor& parameters) {
  const at::Tensor master = parameters.to(at::kFloat);  // wrong: the same on every rank
  return {master, at::zeros_like(master), at::zeros_like(master)};
}

void step(Communicator& communicator, State& state, at::Tensor parameters,
          const at::Tensor& gradient) {
  at::Tensor average = gradient.clone();
  communicator.all_reduce(average, Purpose::kGradient).wait();
  adamw(state.master, average.to(at::kFloat), state.mean, state.square, ++state.steps);
  parameters.copy_(state.master);
}
