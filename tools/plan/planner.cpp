#include "planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <tools/support/table.hpp>
#include <zero/base/error.hpp>
#include <zero/base/names.hpp>

#include "exposed_time.hpp"

namespace zero::plan {
namespace {

LookaheadPlan plan_lookahead(const Request& request) {
  std::vector<double> gathers, computes;
  for (const std::int64_t unit : request.model.units) {
    gathers.push_back(
        transfer_seconds(unit * request.policy.parameter, request.world_size, request.machine));
    computes.push_back(forward_seconds(unit, request.tokens(), request.machine));
  }
  LookaheadPlan plan{.gather = std::ranges::max(gathers),
                     .compute = std::ranges::max(computes),
                     .needed = lookahead(gathers, computes),
                     .used = lookahead(gathers, computes),
                     .always_waits = sum(gathers) > sum(computes)};
  const StagePlan zero3 =
      plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, request.world_size));
  if (request.memory && request.fits(zero3)) {
    const std::int64_t unit = request.model.largest_unit() * request.policy.parameter;
    plan.used = std::min(plan.needed, (request.memory->bytes - zero3.total()) / unit);
  }
  return plan;
}

template <class... Args>
void refuse_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
  if (wrong) throw Error(fmt::format(text, std::forward<Args>(args)...));
}

std::string from_ranks(std::optional<std::int64_t> n) {
  return n ? fmt::format("from {} ranks on", base::with_thousands(*n)) : "on no number of ranks";
}

std::vector<StagePlan> plan_data_ranks(const Request& r, std::int64_t lookahead) {
  std::vector<StagePlan> rows;
  for (const Stage stage : kStages) {
    StagePlan& row = rows.emplace_back(plan_stage(r, stage, data_mesh(stage, r.world_size)));
    row.time = step_time(r, stage, lookahead);
    row.break_even_batch = break_even_batch(row.time.communication, r.model.parameters, r.sequence,
                                            kBreakEvenShare, r.machine);
  }
  rows.push_back(StagePlan(rows.back()));
  rows.back().offloaded = true;
  rows.back().states.optimizer = 0;
  return rows;
}

// Whether the model can be trained on the mesh.
void check_model(const Request& request, const Mesh& mesh) {
  const std::optional<nn::LlamaConfig>& llama = request.model.llama;
  refuse_if(mesh.pipeline > std::ssize(request.model.units),
            "--pp {}: the model has {} layers, and every stage needs one", mesh.pipeline,
            request.model.units.size());
  if (llama) nn::check_tensor_parallel(*llama, static_cast<int>(mesh.tensor));
  const std::int64_t m = request.micro_batches_on(mesh), samples = request.samples_on(mesh);
  refuse_if(samples % m != 0,
            "--micro-batches {} does not divide the {} samples of a data rank (--batch {} x --tp "
            "{} x --pp {})",
            m, samples, request.batch, mesh.tensor, mesh.pipeline);
}

std::vector<StagePlan> plan_mesh(const Request& request) {
  const MeshRequest& asked = request.mesh;
  const std::int64_t tensor = asked.tensor.value_or(1), pipeline = asked.pipeline.value_or(1),
                     data = request.world_size / (tensor * pipeline);
  std::vector<StagePlan> rows;
  for (const Stage stage : kStages) {
    // DDP shares nothing. A pipeline cannot have ZeRO-3 if its first stage has a copy of the head,
    // which PipelinePasses refuses.
    const std::int64_t shards = asked.shards.value_or(data_mesh(stage, data).shards);
    const Mesh mesh{data / std::max<std::int64_t>(1, shards), shards, tensor, pipeline};
    if (mesh.ranks() != request.world_size || (stage == Stage::kDdp) != (shards == 1)) continue;
    check_model(request, mesh);
    if (stage == Stage::kZero3 && pipeline > 1 && is_tied(request.model)) continue;
    rows.push_back(plan_stage(request, stage, mesh));
  }
  refuse_if(rows.empty(),
            "--world-size {} has no mesh with this --tp, --pp and --shard-size: each size must "
            "divide the ranks that the others leave, and groups of one rank share nothing (ddp)",
            request.world_size);
  return rows;
}

// Takes the lowest that is as quick as the quickest out of `plans`, which are in order of stages.
std::optional<StagePlan> take_best(std::vector<StagePlan>& plans) {
  if (plans.empty()) return std::nullopt;
  const auto seconds = [](const StagePlan& plan) { return plan.time.total(); };
  const double enough = (1 + kAsQuick) * seconds(std::ranges::min(plans, {}, seconds));
  const auto best = std::ranges::find_if(
      plans, [&](double s) { return s <= enough; }, seconds);
  const StagePlan taken = *best;
  plans.erase(best);
  return taken;
}

// "0.3 % more time and 1.34 GiB less memory": the price of `other` beside `plan`.
std::string beside(const StagePlan& other, const StagePlan& plan, Unit unit) {
  const double longer = 100 * (other.time.total() / plan.time.total() - 1);
  const std::int64_t more = other.total() - plan.total();
  const std::string percent = tools::fixed(std::abs(longer), 1);
  return fmt::format("{} time and {} {} memory",
                     percent == "0.0" ? "equal" : percent + (longer < 0 ? " % less" : " % more"),
                     at_most(std::abs(more), unit), more < 0 ? "less" : "more");
}

// A no stays a no: whole bytes are compared, needs are printed rounded up and memory rounded down.
Choice choose(const Request& request, const std::vector<StagePlan>& stages) {
  const auto& [memory, unit] = *request.memory;
  std::vector<StagePlan> fitting;
  for (const StagePlan& stage : stages) {
    if (!stage.offloaded && request.fits(stage)) fitting.push_back(stage);
  }
  Choice choice{.taken = take_best(fitting), .next = take_best(fitting)};
  if (const auto& taken = choice.taken) {
    choice.says =
        fmt::format("Take {}: {} needed, {} there. A step takes {}, of which {} exposed.",
                    name(taken->stage), at_least(taken->total(), unit), at_most(memory, unit),
                    in_seconds(taken->time.total()), in_seconds(taken->time.exposed));
    for (const StagePlan& lower : stages) {
      if (lower.stage >= taken->stage) break;
      choice.says += fmt::format(
          " {} {}.", name(lower.stage),
          request.fits(lower) ? "fits too, with " + beside(lower, *taken, unit) : "does not fit");
    }
    choice.says += choice.next ? fmt::format(" Next best: {}, with {}.", name(choice.next->stage),
                                             beside(*choice.next, *taken, unit))
                               : " No other stage fits.";
    return choice;
  }
  constexpr Stage last = Stage::kZero3;
  const auto states = [&](std::int64_t n) {
    return model_states(request.model.parameters, request.policy, last, n).total();
  };
  const auto all = [&](std::int64_t n) {
    return plan_stage(request, last, data_mesh(last, n)).total();
  };
  choice.ranks_for_states = fewest_ranks(memory, request.world_size, states);
  choice.ranks_for_all = fewest_ranks(memory, request.world_size + 1, all);
  choice.says = fmt::format(
      "No stage fits {} on {} rank{}: {} needs {}. Its model states alone fit {}, with transients "
      "and activations it fits {}.",
      at_most(memory, unit), base::with_thousands(request.world_size),
      request.world_size == 1 ? "" : "s", name(last), at_least(all(request.world_size), unit),
      from_ranks(choice.ranks_for_states), from_ranks(choice.ranks_for_all));
  return choice;
}

}  // namespace

Plan make_plan(const Request& request) {
  refuse_if(request.tokens() > kMostTokens,
            "{} samples of {} tokens are {} tokens a rank, but at most {} are planned for: a "
            "smaller --batch or --sequence is needed",
            request.batch, request.sequence, request.tokens(), kMostTokens);
  Plan plan{.request = request, .lookahead = plan_lookahead(request)};
  if (request.hosts.ranks_per_host) {
    plan.hosts = plan_hosts(request);
  } else if (request.has_mesh()) {
    plan.stages = plan_mesh(request);
  } else {
    plan.stages = plan_data_ranks(request, plan.lookahead.used);
    if (request.memory) plan.choice = choose(request, plan.stages);
  }
  return plan;
}

bool Plan::feasible() const {
  return !request.memory || std::ranges::any_of(stages, [&](const StagePlan& stage) {
    return !stage.offloaded && request.fits(stage);
  });
}

Unit Plan::unit() const {
  if (request.memory) return request.memory->unit;
  return request.model.parameters * request.policy.total() < 10 * kGB ? Unit::kMiB : Unit::kGB;
}

}  // namespace zero::plan
