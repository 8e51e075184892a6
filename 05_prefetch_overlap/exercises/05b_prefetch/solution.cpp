#include "05b.hpp"

using exercise_05b::Plan;
using exercise_05b::Units;

void before_unit(Units& units, Plan& plan, int unit) {
  const auto here = static_cast<int>(plan.seen.size());
  const auto size = static_cast<int>(plan.expected.size());
  plan.seen.push_back(unit);
  if (here >= size || plan.expected[here] != unit) plan.lost = true;
  if (!units.is_gathered(unit)) units.start_gather(unit);
  for (int next = here + 1; next <= here + plan.lookahead && next < size && !plan.lost; ++next) {
    if (!units.is_gathered(plan.expected[next])) units.start_gather(plan.expected[next]);
  }
  units.wait_gather(unit);
}

void after_unit(Units& units, Plan& /*plan*/, int unit) { units.reshard(unit); }

void end_pass(Units& units, Plan& plan) {
  for (int unit = 0; unit < units.count(); ++unit) {
    if (units.is_gathered(unit)) units.reshard(unit);  // gathered in vain
  }
  plan.expected = std::exchange(plan.seen, {});
  plan.lost = false;
}
