#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <tools/support/table.hpp>
#include <zero/base/names.hpp>

#include "program.hpp"

namespace zero::plan {
namespace {

using tools::fixed, base::with_thousands;
using Columns = std::vector<tools::Column>;

// A sentence, broken at spaces for 100 columns; further lines begin with `indent`.
std::string wrapped(std::string text, const std::string& indent = "") {
  std::size_t begin = text.starts_with('\n') ? 1 : 0;
  while (text.size() - begin > 100) {
    const std::size_t space = text.rfind(' ', begin + 100);
    if (space == std::string::npos || space < begin + indent.size()) break;  // one long word
    text.replace(space, 1, "\n" + indent);
    begin = space + 1;
  }
  return text + "\n";
}
template <class... Args>
std::string say(fmt::format_string<Args...> text, Args&&... args) {
  return wrapped(fmt::format(text, std::forward<Args>(args)...));
}

// Columns of figures in one unit, under one heading.
void add(Columns& columns, const tools::Cells& headers, const std::string& unit = "",
         const std::string& group = "") {
  for (const std::string& header : headers) {
    columns.push_back({header, tools::Align::kRight, unit, group});
  }
}

// The cells of a row: its name, then bytes in the unit of the plan.
template <class... Bytes>
tools::Cells cells_of(const Plan& plan, std::string name, Bytes... bytes) {
  return {std::move(name), in(static_cast<double>(bytes), plan.unit())...};
}
template <class... Numbers>
void add_numbers(tools::Cells& row, int decimals, Numbers... numbers) {
  (row.push_back(fixed(numbers, decimals)), ...);
}

std::string row_name(const Plan& plan, const StagePlan& row) {
  return name(row.stage) + (plan.request.has_mesh() ? " on " + text(row.mesh)
                            : row.offloaded         ? " + offload"
                                                    : "");
}

std::string memory_table(const Plan& plan) {
  const Request& r = plan.request;
  const std::string unit = name(plan.unit());
  Columns columns = {{"stage", tools::Align::kLeft}};
  add(columns, {"params", "grads", "optimizer", "total"}, unit, "model states");
  add(columns, {"transients", "activations", "all"}, unit);
  if (r.memory) {
    columns.push_back({"fits", tools::Align::kLeft, at_most(r.memory->bytes, r.memory->unit)});
  }
  return tools::table_of(columns, plan.stages, [&](const StagePlan& s) {
    tools::Cells row =
        cells_of(plan, row_name(plan, s), s.states.parameters, s.states.gradients,
                 s.states.optimizer, s.states.total(), s.transients, s.activations, s.total());
    if (r.memory) row.emplace_back(r.fits(s) ? "yes" : "no");
    return row;
  });
}

std::string step_table(const Plan& plan) {
  Columns columns = {{"stage", tools::Align::kLeft}};
  add(columns, {"sent"}, name(plan.unit()), "a rank sends");
  add(columns, {"in V"}, "", "a rank sends");
  add(columns, {"compute", "communication", "exposed", "all"}, "s", "a step");
  add(columns, {"break-even batch"});
  const double v = copies(plan.request.model.parameters, plan.request.policy).parameters;
  std::vector<StagePlan> stages = plan.stages;
  std::erase_if(stages, [](const StagePlan& s) { return s.offloaded; });
  return tools::table_of(columns, stages, [&](const StagePlan& s) {
    tools::Cells row = cells_of(plan, row_name(plan, s), s.sent.total());
    add_numbers(row, 3, s.sent.total() / v, s.time.compute, s.time.communication, s.time.exposed,
                s.time.total());
    row.push_back(s.break_even_batch ? with_thousands(*s.break_even_batch) : "-");
    return row;
  });
}

std::string wire_table(const Plan& plan) {
  Columns columns = {{"stage", tools::Align::kLeft}};
  add(columns, {"shards", "replicas", "tensor", "pipeline", "all"}, name(plan.unit()),
      "a rank sends along");
  add(columns, {"micro-batches"});
  add(columns, {"bubble"}, "%");
  return tools::table_of(columns, plan.stages, [&](const StagePlan& s) {
    tools::Cells row = cells_of(plan, row_name(plan, s), s.sent.shards, s.sent.replicas,
                                s.sent.tensor, s.sent.pipeline, s.sent.total());
    row.push_back(with_thousands(s.micro_batches));
    add_numbers(row, 1, 100 * s.bubble());
    return row;
  });
}

std::string host_table(const Plan& plan) {
  Columns columns = {{"way", tools::Align::kLeft}};
  add(columns, {"states", "sent inside", "leaves a host"}, name(plan.unit()));
  add(columns, {"time"}, "s");
  add(columns, {"from ratio"}, "", "pays");
  add(columns, {"below"}, "GB/s", "pays");
  return tools::table_of(columns, plan.hosts, [&](const HostPlan& h) {
    const double ratio = h.pays_from.value_or(NAN);
    tools::Cells row = cells_of(plan, h.name, h.states.total(), h.sum().inside, h.leaves);
    add_numbers(row, 3, h.seconds, ratio, plan.request.machine.bandwidth / ratio / 1e9);
    return row;
  });
}

std::string title(const Request& r) {
  const std::string parameters = with_thousands(r.model.parameters) + " parameters";
  std::string text = fmt::format(
      "{}{}, {} ({} + {} + {} bytes a parameter), {} rank{}, {} x {} tokens a rank{}\n",
      r.model.name == parameters ? "" : r.model.name + ": ", parameters, r.policy.name,
      r.policy.parameter, r.policy.gradient, r.policy.optimizer, with_thousands(r.world_size),
      r.world_size == 1 ? "" : "s", r.batch, r.sequence, r.recompute ? ", layers recomputed" : "");
  return r.model.note.empty() ? text : text + wrapped("note: " + r.model.note + ".", "  ");
}

std::string about_hosts(const Plan& plan) {
  const HostRequest& hosts = plan.request.hosts;
  const HostPlan& least = std::ranges::min(plan.hosts, {}, &HostPlan::seconds);
  const HostPlan& exact = std::ranges::min(plan.hosts, {}, [](const HostPlan& h) {
    return std::pair(h.sum().quantized > 0, h.seconds);
  });
  return say("{} hosts of {} ranks. Time: communication and quantizing of a step by ring, nothing "
             "hidden, at {} GB/s of a rank inside its host, {} GB/s to other hosts and {} GB/s of "
             "values quantized. A way pays if it takes less time than ZeRO-3.",
             plan.request.world_size / *hosts.ranks_per_host, *hosts.ranks_per_host,
             fixed(plan.request.machine.bandwidth / 1e9, 3), fixed(hosts.bandwidth / 1e9, 3),
             fixed(hosts.quantize_bandwidth / 1e9, 1)) +
         say("\nLeast time: {} ({} s). Of what rounds nothing: {} ({} s).", least.name,
             fixed(least.seconds, 3), exact.name, fixed(exact.seconds, 3));
}

std::string about_inputs(const Plan& plan) {
  if (!plan.request.activations_on_host) return "";
  const InputsOnHost& inputs = plan.stages.front().inputs;
  return say(
      "\nInputs of layers on the host: {} stay on the device, the host has {}, and {} cross the "
      "bus in a micro-batch.",
      at_least(inputs.device, plan.unit()), at_least(inputs.host, plan.unit()),
      at_least(inputs.bus, plan.unit()));
}

std::string about_stages(const Plan& plan) {
  const Request& r = plan.request;
  const LookaheadPlan& k = plan.lookahead;
  const std::int64_t tokens = r.tokens() * r.world_size;
  const std::int64_t even =
      tensor_parallel_crossover(r.model.largest_unit(), r.model.shape.hidden, r.policy);
  std::string text =
      say("V is one copy of the parameters. Transients and activations are estimates, and \"all\" "
          "is a bound. Times for {} GB/s, {} a collective and {} TFLOP/s attained; exposed is what "
          "one link cannot hide behind compute, under ZeRO-1 and ZeRO-2 with "
          "defer_parameter_gather. From the break-even batch on communication, none of it hidden, "
          "takes less than {} % of compute.",
          fixed(r.machine.bandwidth / 1e9, 1), in_seconds(r.machine.latency),
          fixed(r.machine.flops / 1e12, 3), fixed(100 * kBreakEvenShare, 1));
  if (r.world_size == 1) return text;
  text += say(
      "\nLookahead of ZeRO-3: gathering the largest unit takes {}, computing its forward {}: k* = "
      "{}{}{}.",
      in_seconds(k.gather), in_seconds(k.compute), k.needed,
      k.used < k.needed ? fmt::format(", but there is room for {} units ahead", k.used) : "",
      k.always_waits ? "; all gathers together take longer than computing, and the difference "
                       "stays exposed with any k"
                     : "");
  return text +
         say("\nFor a layer ZeRO-3 sends {} than tensor parallelism over all {} ranks would: they "
             "are even at {} tokens over all ranks, this step has {}.",
             tokens < even ? "more" : "less", with_thousands(r.world_size), with_thousands(even),
             with_thousands(tokens));
}

std::string paragraphs(const Plan& plan) {
  if (!plan.hosts.empty()) return about_hosts(plan);
  if (plan.request.has_mesh()) {
    return say("R x S x n x p: R groups of S data ranks, n tensor ranks, p stages of a pipeline. A "
               "data rank has batch x n x p samples in a step. \"All\" that is held is a bound, "
               "and "
               "sent is by the rank that sends most.") +
           about_inputs(plan);
  }
  return about_stages(plan) + about_inputs(plan) +
         (plan.request.memory ? "\n" + wrapped(plan.choice.says) : "");
}

}  // namespace

std::string to_text(const Plan& plan) {
  const bool is_mesh = plan.request.has_mesh();
  const std::string tables =
      !plan.hosts.empty()
          ? host_table(plan)
          : memory_table(plan) + "\n" + (is_mesh ? wire_table(plan) : step_table(plan));
  return title(plan.request) + "\n" + tables +
         "\nBytes of the fullest rank; MiB = 2^20, GiB = 2^30, GB = 10^9. docs/planner.md explains "
         "all columns.\n" +
         paragraphs(plan);
}

}  // namespace zero::plan
