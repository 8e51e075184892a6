// expects: the ranks launch in different orders, .*, each as its gradients come
#include "02b.hpp"

using exercise_02b::Launch;
using exercise_02b::Schedule;

void gradient_ready(Schedule& schedule, int gradient, const Launch& launch) {
  schedule.ready[gradient] = true;
  launch(gradient);  // wrong: another rank gets another gradient first
}

void backward_done(Schedule& schedule, const Launch& launch) {
  for (int next = schedule.count - 1; next >= 0; --next) {
    if (!schedule.ready[next]) launch(next);
  }
  schedule = Schedule(schedule.count);
}
