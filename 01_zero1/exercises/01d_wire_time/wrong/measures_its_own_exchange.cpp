// expects: counts what is sent after the step too
#include "01d.hpp"

using exercise_01d::Clock;
using exercise_01d::Cost;
using exercise_01d::Model;
using exercise_01d::own_piece;
using zero::dist::Communicator;
using zero::dist::Purpose;

Cost measure(Communicator& communicator, const Clock& now, const std::function<void()>& step) {
  communicator.barrier();
  const std::int64_t before = communicator.traffic().bytes();
  const double begin = now();
  step();
  const double clock = now() - begin;
  Cost slowest;
  for (const double each : all_gather_scalars(communicator, {clock})) {
    slowest.clock = std::max(slowest.clock, each);
  }
  // wrong: the exchange of the clocks is counted
  const auto sent = static_cast<double>(communicator.traffic().bytes() - before);
  for (const double each : all_gather_scalars(communicator, {8 * sent / 1e9})) {
    slowest.wire = std::max(slowest.wire, each);
  }
  return slowest;
}

void zero1_step(Communicator& communicator, Model& model) {
  at::Tensor average = own_piece(model.gradient, communicator);
  communicator.reduce_scatter(average, model.gradient, Purpose::kGradient).wait();
  at::Tensor mine = own_piece(model.parameters, communicator);
  exercise_01d::update(mine, average);
  communicator.all_gather(model.parameters, mine, Purpose::kParameter).wait();
}
