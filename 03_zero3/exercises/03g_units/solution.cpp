#include "03g.hpp"

using exercise_03g::Piece;
using exercise_03g::reads;
using exercise_03g::runs;
using exercise_03g::Schedule;
using exercise_03g::Units;

Piece model(int rank) {
  std::vector<Piece> body = {reads(1), runs(2, {reads(2)})};
  if (rank != 1) body.push_back(reads(3));
  return runs(0, {reads(0), runs(1, body), runs(3, {reads(4)}), runs(3, {reads(4)}), reads(5)});
}

void forward_begins(Units& units, Schedule& schedule, int unit) {
  units.gather(unit);
  ++schedule.uses[unit];
}

void forward_ends(Units& units, Schedule& /*schedule*/, int unit) {
  if (unit != 0) units.drop(unit);  // backward begins with the root
}

// The backward of the units that do not contain `unit` is over.
void leave_units_for(Units& units, Schedule& schedule, int unit) {
  while (!schedule.in_backward.empty() && !units.contains(schedule.in_backward.back(), unit)) {
    const int over = schedule.in_backward.back();
    schedule.in_backward.pop_back();
    if (--schedule.uses[over] > 0) continue;  // the backward of another use is still to come
    units.drop(over);
    for (const int parameter : units.parameters(over)) units.reduce(parameter);
  }
}

void backward_begins(Units& units, Schedule& schedule, int unit) {
  leave_units_for(units, schedule, unit);
  if (!units.is_whole(unit)) units.gather(unit);
  schedule.in_backward.push_back(unit);
}

void backward_done(Units& units, Schedule& schedule) {
  leave_units_for(units, schedule, 0);  // no unit contains the root
}
