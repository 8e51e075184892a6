#include "10a.hpp"

using exercise_10a::Account;
using exercise_10a::Plan;

Account account(const Plan& plan) {
  const std::int64_t shard = (plan.parameters + plan.ranks - 1) / plan.ranks;
  const std::int64_t updated = plan.stage >= 1 ? shard : plan.parameters;
  const std::int64_t parameters = 2 * (plan.stage >= 3 ? shard : plan.parameters);
  const std::int64_t gradients = 2 * (plan.stage >= 2 ? shard : plan.parameters);
  const std::int64_t optimizer = 12 * updated;
  Account account;
  account.device = parameters + gradients;
  if (plan.offload) {
    account.host = optimizer;
    account.bus = (2 + 2) * updated;  // gradients there, parameters back
  } else {
    account.device += optimizer;
  }
  return account;
}

std::int64_t fewest_ranks(Plan plan, std::int64_t limit, std::int64_t most) {
  for (plan.ranks = 1; plan.ranks <= most; ++plan.ranks) {
    if (account(plan).device < limit) return plan.ranks;
  }
  return 0;
}
