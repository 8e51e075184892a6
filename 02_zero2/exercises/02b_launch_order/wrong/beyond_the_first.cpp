// expects: looks at gradient -1: stop when all are launched
#include "02b.hpp"

using exercise_02b::Launch;
using exercise_02b::Schedule;

void gradient_ready(Schedule& schedule, int gradient, const Launch& launch) {
  schedule.ready[gradient] = true;
  while (true) {  // wrong: at some point none is left
    const int next = schedule.count - 1 - schedule.launched;
    if (!schedule.ready[next]) break;
    launch(next);
    ++schedule.launched;
  }
}

void backward_done(Schedule& schedule, const Launch& launch) {
  for (int next = schedule.count - 1 - schedule.launched; next >= 0; --next) launch(next);
  schedule = Schedule(schedule.count);
}
