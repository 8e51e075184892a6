#include "02b.hpp"

using exercise_02b::Launch;
using exercise_02b::Schedule;

void gradient_ready(Schedule& schedule, int gradient, const Launch& launch) {
  // launch(g) starts the reduction of gradient g.
}

void backward_done(Schedule& schedule, const Launch& launch) {}
