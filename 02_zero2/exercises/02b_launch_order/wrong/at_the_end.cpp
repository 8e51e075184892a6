// expects: waits until backward is over
#include "02b.hpp"

using exercise_02b::Launch;
using exercise_02b::Schedule;

void gradient_ready(Schedule& schedule, int gradient, const Launch& launch) {
  schedule.ready[gradient] = true;
}

void backward_done(Schedule& schedule, const Launch& launch) {
  // wrong: right, but every gradient is kept until the end
  for (int next = schedule.count - 1; next >= 0; --next) launch(next);
  schedule = Schedule(schedule.count);
}
