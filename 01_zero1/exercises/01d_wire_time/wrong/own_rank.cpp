// expects: says 0 s on the wire, and rank
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
  const auto sent = static_cast<double>(communicator.traffic().bytes() - before);
  return {8 * sent / 1e9, clock};  // wrong: another rank may need longer
}

void zero1_step(Communicator& communicator, Model& model) {
  at::Tensor average = own_piece(model.gradient, communicator);
  communicator.reduce_scatter(average, model.gradient, Purpose::kGradient).wait();
  at::Tensor mine = own_piece(model.parameters, communicator);
  exercise_01d::update(mine, average);
  communicator.all_gather(model.parameters, mine, Purpose::kParameter).wait();
}
