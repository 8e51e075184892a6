#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <tools/support/table.hpp>
#include <zero/base/thousands.hpp>

#include "program.hpp"

namespace zero::plan {
namespace {

using tools::fixed, base::with_thousands;

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

// Columns of figures with a row for each way to train.
template <class Row>
struct Figures {
  std::vector<tools::Figure<Row>> all;

  void add(const char* header, std::function<std::string(const Row&)> cell, const char* unit = "",
           const char* group = "", tools::Align align = tools::Align::kRight) {
    all.push_back({{header, align, unit, group}, std::move(cell)});
  }
  void add_bytes(Unit unit, const char* header, std::function<double(const Row&)> bytes,
                 const char* group = "") {
    add(
        header, [=](const Row& row) { return in(bytes(row), unit); }, name(unit), group);
  }
  void add_number(const char* header, std::function<double(const Row&)> number,
                  const char* unit = "", const char* group = "", int decimals = 3) {
    add(
        header, [=](const Row& row) { return fixed(number(row), decimals); }, unit, group);
  }
};

Figures<StagePlan> with_names(const Plan& plan) {
  const auto name_of = [mesh = plan.request.has_mesh()](const StagePlan& s) {
    return name(s.stage) + (mesh ? " on " + text(s.mesh) : s.offloaded ? " + offload" : "");
  };
  Figures<StagePlan> figures;
  figures.add("stage", name_of, "", "", tools::Align::kLeft);
  return figures;
}

std::string memory_table(const Plan& plan) {
  using Row = const StagePlan&;
  const Request& r = plan.request;
  const char* const states = "model states";
  auto figures = with_names(plan);
  const auto add = [&](const char* header, auto bytes, const char* group = "") {
    figures.add_bytes(plan.unit(), header, bytes, group);
  };
  add(
      "params", [](Row s) { return s.states.parameters; }, states);
  add(
      "grads", [](Row s) { return s.states.gradients; }, states);
  add(
      "optimizer", [](Row s) { return s.states.optimizer; }, states);
  add(
      "total", [](Row s) { return s.states.total(); }, states);
  add("transients", [](Row s) { return s.transients; });
  add("activations", [](Row s) { return s.activations; });
  add("all", [](Row s) { return s.total(); });
  if (r.memory) {
    figures.add(
        "fits", [&](Row s) { return r.fits(s) ? "yes" : "no"; },
        at_most(r.memory->bytes, r.memory->unit).c_str(), "", tools::Align::kLeft);
  }
  return tools::table_of(plan.stages, figures.all);
}

std::string step_table(const Plan& plan) {
  using Row = const StagePlan&;
  const char *const sent = "a rank sends", *const step = "a step";
  const double v = copies(plan.request.model.parameters, plan.request.policy).parameters;
  auto figures = with_names(plan);
  figures.add_bytes(
      plan.unit(), "sent", [](Row s) { return s.sent.total(); }, sent);
  figures.add_number(
      "in V", [v](Row s) { return s.sent.total() / v; }, "", sent);
  figures.add_number(
      "compute", [](Row s) { return s.time.compute; }, "s", step);
  figures.add_number(
      "communication", [](Row s) { return s.time.communication; }, "s", step);
  figures.add_number(
      "exposed", [](Row s) { return s.time.exposed; }, "s", step);
  figures.add_number(
      "all", [](Row s) { return s.time.total(); }, "s", step);
  figures.add("break-even batch",
              [](Row s) { return s.break_even_batch ? with_thousands(*s.break_even_batch) : "-"; });
  std::vector<StagePlan> rows = plan.stages;
  std::erase_if(rows, [](Row s) { return s.offloaded; });
  return tools::table_of(rows, figures.all);
}

std::string wire_table(const Plan& plan) {
  using Row = const StagePlan&;
  const char* const along = "a rank sends along";
  auto figures = with_names(plan);
  const auto add = [&](const char* axis, auto bytes) {
    figures.add_bytes(plan.unit(), axis, bytes, along);
  };
  add("shards", [](Row s) { return s.sent.shards; });
  add("replicas", [](Row s) { return s.sent.replicas; });
  add("tensor", [](Row s) { return s.sent.tensor; });
  add("pipeline", [](Row s) { return s.sent.pipeline; });
  add("all", [](Row s) { return s.sent.total(); });
  figures.add("micro-batches", [](Row s) { return with_thousands(s.micro_batches); });
  figures.add_number(
      "bubble", [](Row s) { return 100 * s.bubble(); }, "%", "", 1);
  return tools::table_of(plan.stages, figures.all);
}

std::string host_table(const Plan& plan) {
  using Row = const HostPlan&;
  const double inside = plan.request.machine.bandwidth / 1e9;
  Figures<HostPlan> figures;
  figures.add(
      "way", [](Row h) { return h.name; }, "", "", tools::Align::kLeft);
  figures.add_bytes(plan.unit(), "states", [](Row h) { return h.states.total(); });
  figures.add_bytes(plan.unit(), "sent inside", [](Row h) { return h.sum().inside; });
  figures.add_bytes(plan.unit(), "leaves a host", [](Row h) { return h.leaves; });
  figures.add_number(
      "time", [](Row h) { return h.seconds; }, "s");
  figures.add_number(
      "from ratio", [](Row h) { return h.pays_from.value_or(NAN); }, "", "pays");
  figures.add_number(
      "below", [inside](Row h) { return inside / h.pays_from.value_or(NAN); }, "GB/s", "pays");
  return tools::table_of(plan.hosts, figures.all);
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
    return say("R x S x T x p: R groups of S data ranks, T tensor ranks, p stages of a pipeline. A "
               "data rank has batch x T x p samples in a step. \"All\" that is held is a bound, "
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
