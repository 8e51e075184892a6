#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include <zero/base/table.hpp>

namespace zero::plan {
namespace {

using base::Align, base::Column, base::fixed, base::with_thousands;

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

std::string row_name(const Plan& plan, const StagePlan& row) {
  const std::string offload = row.offloaded ? " + offload" : "";
  return name(row.stage) + (plan.request.has_mesh() ? " on " + text(row.mesh) : offload);
}

void add(std::vector<Column>& columns, const std::vector<std::string>& headers,
         const std::string& unit = "", const std::string& group = "") {
  for (const std::string& header : headers) columns.push_back({header, Align::kRight, unit, group});
}

std::string memory_table(const Plan& plan) {
  const Request& r = plan.request;
  std::vector<Column> columns = {{"stage", Align::kLeft}};
  add(columns, {"params", "grads", "optimizer", "total"}, name(plan.unit()), "model states");
  add(columns, {"transients", "activations", "all"}, name(plan.unit()));
  if (r.memory) columns.push_back({"fits", Align::kLeft, at_most(r.memory->bytes, r.memory->unit)});
  base::Table table(columns);
  for (const StagePlan& s : plan.stages) {
    std::vector<std::string> cells = {row_name(plan, s)};
    for (const std::int64_t bytes : {s.states.parameters, s.states.gradients, s.states.optimizer,
                                     s.states.total(), s.transients, s.activations, s.total()}) {
      cells.push_back(in(static_cast<double>(bytes), plan.unit()));
    }
    if (r.memory) cells.push_back(r.fits(s) ? "yes" : "no");
    table.add_row(cells);
  }
  return table.to_text();
}

std::string step_table(const Plan& plan) {
  std::vector<Column> columns = {{"stage", Align::kLeft},
                                 {"sent", Align::kRight, name(plan.unit()), "a rank sends"},
                                 {"in V", Align::kRight, "", "a rank sends"}};
  add(columns, {"compute", "communication", "exposed", "all"}, "s", "a step");
  add(columns, {"break-even batch"});
  base::Table table(columns);
  const double v = copies(plan.request.model.parameters, plan.request.policy).parameters;
  for (const StagePlan& s : plan.stages) {
    if (s.offloaded) continue;
    table.add_row({row_name(plan, s), in(s.sent.total(), plan.unit()), fixed(s.sent.total() / v, 3),
                   fixed(s.time.compute, 3), fixed(s.time.communication, 3),
                   fixed(s.time.exposed, 3), fixed(s.time.total(), 3),
                   s.break_even_batch ? with_thousands(*s.break_even_batch) : "-"});
  }
  return table.to_text();
}

std::string wire_table(const Plan& plan) {
  std::vector<Column> columns = {{"stage", Align::kLeft}};
  add(columns, {"shards", "replicas", "tensor", "pipeline", "all"}, name(plan.unit()),
      "a rank sends along");
  add(columns, {"micro-batches"});
  add(columns, {"bubble"}, "%");
  base::Table table(columns);
  for (const StagePlan& s : plan.stages) {
    std::vector<std::string> cells = {row_name(plan, s)};
    const auto& [shards, replicas, tensor, pipeline] = s.sent;
    for (const double bytes : {shards, replicas, tensor, pipeline, s.sent.total()}) {
      cells.push_back(in(bytes, plan.unit()));
    }
    cells.insert(cells.end(), {with_thousands(s.micro_batches), fixed(100 * s.bubble(), 1)});
    table.add_row(cells);
  }
  return table.to_text();
}

std::string host_table(const Plan& plan) {
  const std::string unit = name(plan.unit());
  const auto bytes = [&](double value) { return in(value, plan.unit()); };
  base::Table table({{"way", Align::kLeft},
                     {"states", Align::kRight, unit},
                     {"inside", Align::kRight, unit, "a rank sends"},
                     {"ring", Align::kRight, unit, "leaves a host"},
                     {"direct", Align::kRight, unit, "leaves a host"},
                     {"time", Align::kRight, "s"},
                     {"from ratio", Align::kRight, "", "pays"},
                     {"below", Align::kRight, "GB/s", "pays"}});
  for (const HostPlan& h : plan.hosts) {
    const double ratio = h.pays_from.value_or(NAN), inside = plan.request.machine.bandwidth;
    table.add_row({h.name, bytes(static_cast<double>(h.states.total())), bytes(h.sum().inside),
                   bytes(h.leaves_by_ring), bytes(h.leaves_directly), fixed(h.seconds, 3),
                   fixed(ratio, 3), fixed(inside / ratio / 1e9, 3)});
  }
  return table.to_text();
}

std::string title(const Request& r) {
  const std::string parameters = with_thousands(r.model.parameters) + " parameters";
  std::string text = fmt::format(
      "{}{}, {} ({} + {} + {} bytes a parameter), {} rank{}, {} x {} tokens a rank{}\n",
      r.model.name == parameters ? "" : r.model.name + ": ", parameters, r.policy.name,
      r.policy.parameter, r.policy.gradient, r.policy.optimizer, with_thousands(r.world_size),
      r.world_size == 1 ? "" : "s", r.batch, r.sequence, r.recompute ? ", layers recomputed" : "");
  for (const std::string& note : r.model.notes) text += wrapped("note: " + note + ".", "  ");
  return text;
}

std::string about_hosts(const Plan& plan) {
  const HostRequest& hosts = plan.request.hosts;
  const HostPlan& least = std::ranges::min(plan.hosts, {}, &HostPlan::seconds);
  const HostPlan& exact = std::ranges::min(plan.hosts, {}, [](const HostPlan& h) {
    return std::pair(h.sum().quantized > 0, h.seconds);
  });
  return say("{} hosts of {} ranks. Time: communication and quantising of a step by {}, nothing "
             "hidden, at {} GB/s of a rank inside its host, {} GB/s to other hosts and {} GB/s of "
             "values quantised. A way pays if it takes less time than ZeRO-3.",
             plan.request.world_size / *hosts.ranks_per_host, *hosts.ranks_per_host,
             hosts.sending == Sending::kRing ? "ring" : "direct sends",
             fixed(plan.request.machine.bandwidth / 1e9, 3), fixed(hosts.bandwidth / 1e9, 3),
             fixed(hosts.quantize_bandwidth / 1e9, 1)) +
         say("\nLeast time: {} ({} s). Of what rounds nothing: {} ({} s).", least.name,
             fixed(least.seconds, 3), exact.name, fixed(exact.seconds, 3));
}

std::string about_stages(const Plan& plan) {
  const Request& r = plan.request;
  const LookaheadPlan& k = plan.lookahead;
  const std::int64_t tokens = r.tokens() * r.world_size,
                     even = tensor_parallel_crossover(r.model.largest_unit(), r.model.shape.hidden,
                                                      r.policy);
  std::string text =
      say("V is one copy of the parameters. Transients and activations are estimates, and \"all\" "
          "is a bound. Times for {} GB/s, {} a collective and {} TFLOP/s attained; exposed is what "
          "one link cannot hide behind compute. From the break-even batch on communication, none "
          "of it hidden, takes less than {} % of compute.",
          fixed(r.machine.bandwidth / 1e9, 1), in_seconds(r.machine.latency),
          fixed(r.machine.flops / 1e12, 3), fixed(100 * r.break_even_share, 1));
  if (r.world_size == 1) return text;
  if (r.stage.value_or(Stage::kZero3) == Stage::kZero3) {
    text += say(
        "\nLookahead of ZeRO-3: gathering the largest unit takes {}, computing its forward {}: k* "
        "= {}{}{}.",
        in_seconds(k.gather), in_seconds(k.compute), k.needed,
        k.used < k.needed ? fmt::format(", but there is room for {} units ahead", k.used) : "",
        k.always_waits ? "; all gathers together take longer than computing, and the difference "
                         "stays exposed with any k"
                       : "");
  }
  return text +
         say("\nFor a layer ZeRO-3 sends {} than tensor parallelism over all {} ranks would: they "
             "are even at {} tokens over all ranks, this step has {}.",
             tokens < even ? "more" : "less", with_thousands(r.world_size), with_thousands(even),
             with_thousands(tokens));
}

std::string paragraphs(const Plan& plan) {
  if (!plan.hosts.empty()) return about_hosts(plan);
  if (plan.request.has_mesh()) {
    return say(
        "R x S x T x p: R groups of S data ranks, T tensor ranks, p stages of a pipeline. A data "
        "rank has batch x T x p samples in a step. \"All\" that is held is a bound, and sent is by "
        "the rank that sends most.");
  }
  return about_stages(plan) + (plan.request.memory ? "\n" + wrapped(plan.choice.says) : "");
}

// Parameters, ranks, memory, bandwidth and batch.
constexpr const char* kScenarios[] = {
    "360M 2 24GB 100GB/s 1", "360M 2 24GB 1GB/s 1",   "1.5B 8 80GB 100GB/s 1",
    "1.5B 8 80GB 10GB/s 1",  "1.5B 8 80GB 10GB/s 8",  "1.5B 8 16GB 100GB/s 1",
    "1.5B 8 10GB 100GB/s 1", "7B 8 80GB 100GB/s 1",   "7B 8 40GB 100GB/s 1",
    "7B 8 40GB 10GB/s 1",    "7B 64 24GB 100GB/s 1",  "13B 8 24GB 100GB/s 1",
    "13B 32 24GB 100GB/s 1", "13B 32 24GB 10GB/s 1",  "70B 64 80GB 100GB/s 1",
    "70B 64 80GB 10GB/s 1",  "70B 512 80GB 100GB/s 1"};

}  // namespace

std::string to_text(const Plan& plan) {
  const bool has_mesh = plan.request.has_mesh();
  return title(plan.request) + "\n" +
         (plan.hosts.empty()
              ? memory_table(plan) + "\n" + (has_mesh ? wire_table(plan) : step_table(plan))
              : host_table(plan)) +
         "\nBytes of the fullest rank; MiB = 2^20, GiB = 2^30, GB = 10^9. docs/planner.md explains "
         "all columns.\n" +
         paragraphs(plan);
}

std::string scenarios(Request request) {
  std::vector<Column> columns = {{"parameters", Align::kLeft}, {"ranks"}, {"memory", Align::kLeft},
                                 {"link", Align::kLeft},       {"batch"}, {"take", Align::kLeft}};
  add(columns, {"step", "exposed"}, "s");
  columns.push_back({"", Align::kLeft, "", "next best"});
  add(columns, {"time"}, "%", "next best");
  add(columns, {"memory"}, "GB", "next best");
  base::Table table(columns);
  for (const char* scenario : kScenarios) {
    std::istringstream words(scenario);
    std::string parameters, memory, bandwidth;
    words >> parameters >> request.world_size >> memory >> bandwidth >> request.batch;
    request.model = model_of_size(parse_count(parameters));
    request.memory = parse_memory(memory);
    request.machine.bandwidth = parse_bandwidth(bandwidth);
    const auto [taken, next, says, for_states, for_all] = make_plan(request).choice;
    std::vector<std::string> cells = {parameters, with_thousands(request.world_size), memory,
                                      bandwidth, with_thousands(request.batch)};
    if (taken) {
      cells.insert(cells.end(), {name(taken->stage), fixed(taken->time.total(), 3),
                                 fixed(taken->time.exposed, 3)});
    } else {
      cells.insert(cells.end(),
                   {"none", "-", "-", for_all ? fmt::format("{} ranks", *for_all) : "-"});
    }
    if (next) {
      const double longer = next->time.total() / taken->time.total() - 1;
      const auto more = static_cast<double>(next->total() - taken->total());
      cells.insert(cells.end(), {name(next->stage), fixed(100 * longer, 1), in(more, Unit::kGB)});
    }
    cells.resize(columns.size(), "-");
    table.add_row(cells);
  }
  return table.to_text();
}

}  // namespace zero::plan
