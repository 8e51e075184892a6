// Compares with the formula, and the formula with those of the classes of chapter 04.

#include <04_tensor_sharding/tensor_zero1.hpp>
#include <04_tensor_sharding/tensor_zero2.hpp>
#include <04_tensor_sharding/tensor_zero3.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "10a.hpp"

namespace exercise_10a {

using zero::dist::Communicator;
using zero::exercise::refuse;

// Elements of each of the three states, and of what the rank updates.
struct Elements {
  std::int64_t parameters, gradients, updated;
};

Elements elements_of(const Plan& plan, bool rounds_down = false) {
  const std::int64_t rest = rounds_down ? 0 : plan.ranks - 1;
  const auto divided = [&](int from) {
    return plan.stage < from ? plan.parameters : (plan.parameters + rest) / plan.ranks;
  };
  return {divided(3), divided(2), divided(1)};
}

Account account_of(const Plan& plan, const Elements& n) {
  const std::int64_t device = 2 * n.parameters + 2 * n.gradients, optimizer = 12 * n.updated;
  return plan.offload ? Account{device, optimizer, 4 * n.updated}
                      : Account{device + optimizer, 0, 0};
}

Account right_account(const Plan& plan) { return account_of(plan, elements_of(plan)); }

std::int64_t right_fewest(Plan plan, std::int64_t limit, std::int64_t most) {
  for (plan.ranks = 1; plan.ranks <= most; ++plan.ranks) {
    if (right_account(plan).device < limit) return plan.ranks;
  }
  return 0;
}

std::string text_of(const Plan& plan) {
  return fmt::format("{} {} offload, {} parameters",
                     plan.stage == 0 ? "DDP" : fmt::format("ZeRO-{}", plan.stage),
                     plan.offload ? "with" : "without", plan.parameters);
}

// A number, and the mistake that leads to it.
using Known = std::pair<std::int64_t, const char*>;

void expect(const std::string& what, std::int64_t found, std::int64_t right,
            const std::vector<Known>& known) {
  if (found == right) return;
  for (const auto& [number, mistake] : known) {
    if (found == number) refuse("{}: {}", what, mistake);
  }
  refuse("{}, which is too {}", what, found < right ? "little" : "much");
}

void check_account(const Answer& answer, const Plan& plan) {
  const Account found = answer.account(plan), right = right_account(plan);
  const Elements n = elements_of(plan);
  const std::string begin = fmt::format("{}, {} ranks: ", text_of(plan), plan.ranks);
  const auto bytes = [&](std::int64_t number, const char* where) {
    return fmt::format("{}{} bytes {}", begin, number, where);
  };
  const Account down = account_of(plan, elements_of(plan, /*rounds_down=*/true));
  expect(bytes(found.device, "on the device"), found.device, right.device,
         {{right.device + 12 * n.updated, "the optimizer's states have left it"},
          {right.device - 2 * n.gradients, "the gradients stay, 2 bytes each"},
          {right.device + 4 * n.updated, "master weights are the optimizer's, and have left it"},
          {4 * elements_of({3, true, plan.parameters, plan.ranks}).parameters,
           "the stage does not divide everything"},
          {down.device, "P/N is rounded up"}});
  expect(bytes(found.host, "on the host"), found.host, right.host,
         {{12 * plan.parameters, "each rank has the states of what it updates, its P/N"},
          {8 * n.updated, "the master weights are there too"},
          {down.host, "P/N is rounded up"},
          {12 * n.updated, "without offload there is nothing"}});
  expect(bytes(found.bus, "on the bus"), found.bus, right.bus,
         {{2 * n.updated, "there are two directions: gradients there, parameters back"},
          {4 * plan.parameters, "a rank sends the gradients of what it updates, its P/N"},
          {2 * n.gradients + 2 * n.parameters,
           "that is what the device holds: what the rank updates goes there and back"},
          {12 * n.updated, "the states stay on the host"},
          {24 * n.updated, "the states stay on the host"},
          {8 * n.updated, "both directions have bfloat16, 2 bytes"},
          {down.bus, "P/N is rounded up"},
          {4 * n.updated, "without offload there is nothing"}});
}

void check_fewest(const Answer& answer, Plan plan, std::int64_t limit) {
  constexpr std::int64_t kMost = 1024;
  const std::int64_t right = right_fewest(plan, limit, kMost);
  const std::int64_t found = answer.fewest_ranks(plan, limit, kMost);
  const std::string what = fmt::format("{}: {} as the fewest ranks with less than {} bytes",
                                       text_of(plan), found, limit);
  if (right == 0 && found != 0) {
    refuse("{}: no number of ranks has so little, because some states are not divided", what);
  }
  plan.ranks = found;
  if (found > 0 && right_account(plan).device == limit) {
    refuse("{}: it has exactly so many, and less is asked", what);
  }
  plan.offload = !plan.offload;
  expect(what, found, right,
         {{right_fewest(plan, limit, kMost), "that is the number of the other column"}});
}

// The formula beside that of the class, for a model whose shards have no padding on 2 and 3 ranks.
template <typename Strategy>
void check_formula(Communicator& communicator, int stage) {
  zero::tools::Mlp model(
      zero::tools::MlpConfig{.inputs = 384, .hidden = {}, .outputs = 384, .dtype = at::kBFloat16});
  const Strategy strategy(
      {model, communicator, zero::optim::with_master_weights(zero::optim::adamw())});
  const zero::train::ModelStateBytes held = strategy.costs().at_rest;
  const Account right = right_account({stage, true, strategy.list().numel(), communicator.size()});
  if (held.parameters + held.gradients != right.device || held.optimizer != right.host) {
    refuse("the formula is not that of the class of ZeRO-{}", stage);
  }
}

void check(const Answer& answer) {
  for (const std::int64_t parameters : {std::int64_t{1'500'000'000}, std::int64_t{1'000'003}}) {
    for (const std::int64_t ranks : {8, 1, 2, 3, 7, 64}) {
      for (const int stage : {1, 0, 2, 3}) {
        for (const bool offload : {false, true}) {
          check_account(answer, {stage, offload, parameters, ranks});
        }
      }
    }
  }
  for (const auto& [parameters, limit] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1'500'000'000, 1'000'000'000},
                                                          {1'500'000'000, 1 << 30},
                                                          {13'000'000'000, 24'000'000'000}}) {
    for (const int stage : {3, 2, 1, 0}) {
      for (const bool offload : {true, false}) {
        check_fewest(answer, {stage, offload, parameters, 1}, limit);
      }
    }
  }
  for (const int ranks : {2, 3}) {
    zero::exercise::on_ranks(ranks, [](Communicator& communicator) {
      check_formula<zero::TensorZero1>(communicator, 1);
      check_formula<zero::TensorZero2>(communicator, 2);
      check_formula<zero::TensorZero3>(communicator, 3);
    });
  }
}

}  // namespace exercise_10a
