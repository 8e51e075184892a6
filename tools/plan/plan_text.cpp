#include <fmt/format.h>

#include <algorithm>

#include <zero/base/table.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::Column;
using base::fixed;
using base::Table;

constexpr std::size_t kWidth = 100;

// Breaks a sentence at spaces; further lines begin with `indent`.
std::string wrapped(const std::string& sentence, const std::string& indent) {
  std::string text;
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < sentence.size();) {
    const std::size_t end = std::min(sentence.find(' ', begin), sentence.size());
    const std::string word = sentence.substr(begin, end - begin);
    if (column > 0 && column + 1 + word.size() > kWidth) {
      text += fmt::format("\n{}", indent);
      column = indent.size();
    } else if (column > 0) {
      text += " ";
      ++column;
    }
    text += word;
    column += word.size();
    begin = end + 1;
  }
  return text + "\n";
}

std::string policy_words(const Policy& p) {
  return fmt::format("{} ({} + {} + {} bytes a parameter)", p.name, p.parameter, p.gradient,
                     p.optimizer);
}

std::string row_name(const StagePlan& plan) {
  return std::string(name(plan.stage)) + (plan.offloaded ? " + offload" : "");
}

Table memory_table(const Plan& plan) {
  const Unit unit = plan.unit();
  const std::string u = name(unit);
  std::vector<Column> columns = {{"stage", Align::kLeft},
                                 {"params", Align::kRight, u, "model states"},
                                 {"grads", Align::kRight, u, "model states"},
                                 {"optimizer", Align::kRight, u, "model states"},
                                 {"total", Align::kRight, u, "model states"},
                                 {"transients", Align::kRight, u},
                                 {"activations", Align::kRight, u},
                                 {"all", Align::kRight, u}};
  if (plan.request.memory) {
    columns.push_back({"fits " + at_most(plan.request.memory->bytes, unit), Align::kLeft});
  }
  Table table(columns);
  for (const StagePlan& s : plan.stages) {
    const auto cell = [&](std::int64_t bytes) { return in(static_cast<double>(bytes), unit); };
    std::vector<std::string> row = {row_name(s),
                                    cell(s.states.parameters),
                                    cell(s.states.gradients),
                                    cell(s.states.optimizer),
                                    cell(s.states.total()),
                                    cell(s.transients),
                                    cell(s.activations),
                                    cell(s.total())};
    if (s.fits) row.push_back(*s.fits ? "yes" : "no");
    table.add_row(std::move(row));
  }
  return table;
}

Table step_table(const Plan& plan) {
  const Unit unit = plan.unit();
  Table table({{"stage", Align::kLeft},
               {"sent", Align::kRight, name(unit), "a rank sends"},
               {"in V", Align::kRight, "", "a rank sends"},
               {"compute", Align::kRight, "s", "a step"},
               {"communication", Align::kRight, "s", "a step"},
               {"exposed", Align::kRight, "s", "a step"},
               {"all", Align::kRight, "s", "a step"},
               {"break-even batch", Align::kRight}});
  for (const StagePlan& s : plan.stages) {
    if (s.offloaded) continue;
    table.add_row({row_name(s), in(s.sent.total(), unit), fixed(s.sent_in_copies, 3),
                   fixed(s.time.compute, 3), fixed(s.time.communication, 3),
                   fixed(s.time.exposed, 3), fixed(s.time.total(), 3),
                   s.break_even_batch ? base::with_thousands(*s.break_even_batch) : "-"});
  }
  return table;
}

std::string title(const Request& r) {
  const std::string parameters = base::with_thousands(r.model.parameters) + " parameters";
  return fmt::format("{}{}, {}, {} rank{}, {} x {} tokens a rank{}\n",
                     r.model.name == parameters ? "" : r.model.name + ": ", parameters,
                     policy_words(r.policy), base::with_thousands(r.world_size),
                     r.world_size == 1 ? "" : "s", r.batch, r.sequence,
                     r.recompute == Recompute::kLayers ? ", layers recomputed" : "");
}

std::string hybrid_sentence(const Plan& plan) {
  const Unit unit = plan.unit();
  return fmt::format(
      "Hybrid, units of {} parameters and more under ZeRO-3 and the rest under ZeRO-2: {} "
      "parameters are large, {} small; {} {} of model states, {} {} sent.",
      base::with_thousands(plan.request.hybrid_threshold), base::with_thousands(plan.hybrid.large),
      base::with_thousands(plan.hybrid.small),
      in(static_cast<double>(plan.hybrid.states.total()), unit), name(unit),
      in(plan.hybrid.sent, unit), name(unit));
}

std::string tensor_parallel_sentence(const Plan& plan) {
  const Request& r = plan.request;
  const std::int64_t tokens = r.tokens() * r.world_size;
  return fmt::format(
      "For a layer ZeRO-3 sends {} than tensor parallelism over all {} ranks would: they are even "
      "at {} tokens over all ranks, this step has {}.",
      tokens < plan.crossover_tokens ? "more" : "less", base::with_thousands(r.world_size),
      base::with_thousands(plan.crossover_tokens), base::with_thousands(tokens));
}

std::string alternatives(const Plan& plan) {
  const Request& r = plan.request;
  std::string text;
  if (r.stage.value_or(Stage::kZero3) == Stage::kZero3) {
    text +=
        wrapped(fmt::format("Lookahead of ZeRO-3: gathering the largest unit takes {}, computing "
                            "its forward {}: {}.",
                            in_seconds(plan.lookahead.gather), in_seconds(plan.lookahead.compute),
                            plan.lookahead.says),
                "  ");
  }
  text += wrapped(fmt::format("Redundancy of DDP: {} copies of everything, {} % of it redundant.",
                              base::with_thousands(r.world_size),
                              fixed(100 * redundant_share(r.world_size), 1)),
                  "  ");
  return text + wrapped(hybrid_sentence(plan), "  ") +
         wrapped(tensor_parallel_sentence(plan), "  ");
}

Table hybrid_table(const std::vector<HybridPart>& parts, const char* what, Unit unit) {
  const std::string u = name(unit);
  Table table({{what, Align::kLeft},
               {"number"},
               {"parameters", Align::kRight, "each"},
               {"stage", Align::kLeft},
               {"model states", Align::kRight, u, "all of them, of a rank"},
               {"sent", Align::kRight, u, "all of them, of a rank"}});
  const auto add = [&](const HybridPart& p, const std::string& each, const std::string& stage) {
    table.add_row({p.name, base::with_thousands(p.count), each, stage,
                   in(static_cast<double>(p.states.total()), unit), in(p.sent, unit)});
  };
  for (const HybridPart& part : parts) {
    add(part, base::with_thousands(part.parameters), name(part.stage));
  }
  for (const Stage stage : {Stage::kZero3, Stage::kZero2}) {
    if (total(parts, stage).count > 0) add(total(parts, stage), "", "together");
  }
  add(total(parts), "", "together");
  return table;
}

std::string hybrid_text(const Plan& plan) {
  const Request& r = plan.request;
  const HybridReport report = hybrid_report(r.model, r.policy, r.world_size, r.hybrid_threshold);
  std::string text;
  if (report.modules.empty()) {
    text += "\nThe modules are not known: a number of parameters says nothing of them.\n";
  } else {
    text += "\n" + hybrid_table(report.modules, "module", plan.unit()).to_text();
  }
  text += "\n" + hybrid_table(report.units, "unit", plan.unit()).to_text() + "\n";
  return text +
         wrapped(fmt::format("What has {} parameters or more is under ZeRO-3, the rest under "
                             "ZeRO-2. Modules are the parts that hold parameters themselves, units "
                             "what this library gathers together: whole_below of engine3 decides "
                             "by unit. What is cut is cut by itself, and rounded up. Bytes of a "
                             "rank in a step; MiB = 2^20, GiB = 2^30, GB = 10^9.",
                             base::with_thousands(r.hybrid_threshold)),
                 "");
}

Table mesh_table(const Plan& plan) {
  const Unit unit = plan.unit();
  const std::string u = name(unit);
  std::vector<Column> columns = {{"RxSxTxp", Align::kLeft},
                                 {"stage", Align::kLeft},
                                 {"m"},
                                 {"states", Align::kRight, u, "a rank holds"},
                                 {"activ.", Align::kRight, u, "a rank holds"},
                                 {"all", Align::kRight, u, "a rank holds"}};
  if (plan.request.memory) columns.push_back({"fits", Align::kLeft});
  for (const char* axis : {"shards", "replicas", "tensor", "pipeline", "all"}) {
    columns.push_back({axis, Align::kRight, u, "a rank sends along"});
  }
  columns.push_back({"bubble", Align::kRight, "%"});
  Table table(columns);
  for (const MeshPlan& m : plan.meshes) {
    std::vector<std::string> row = {text(m.mesh), name(m.stage),
                                    fmt::format("{}", m.micro_batches)};
    for (const std::int64_t held : {m.states.total(), m.activations, m.total()}) {
      row.push_back(in(static_cast<double>(held), unit));
    }
    if (m.fits) row.push_back(*m.fits ? "yes" : "no");
    for (const double sent :
         {m.sent.shards, m.sent.replicas, m.sent.tensor, m.sent.pipeline, m.sent.total()}) {
      row.push_back(in(sent, unit));
    }
    row.push_back(fixed(100 * m.bubble, 1));
    table.add_row(std::move(row));
  }
  return table;
}

std::string mesh_verdict(const Plan& plan) {
  const Memory& memory = *plan.request.memory;
  const auto where = [&](const MeshPlan& m) {
    return fmt::format("{} on {} holds {}", name(m.stage), text(m.mesh),
                       at_least(m.total(), memory.unit));
  };
  const MeshPlan *smallest = nullptr, *least = nullptr;
  std::size_t fitting = 0;
  for (const MeshPlan& m : plan.meshes) {
    if (smallest == nullptr || m.total() < smallest->total()) smallest = &m;
    if (!*m.fits) continue;
    ++fitting;
    if (least == nullptr || m.sent.total() < least->sent.total()) least = &m;
  }
  const std::string there = at_most(memory.bytes, memory.unit);
  if (least == nullptr) {
    return fmt::format("Nothing fits {}. What needs least: {}.", there, where(*smallest));
  }
  return fmt::format("{} of {} fit {}. What sends least of them: {} and sends {} {}.", fitting,
                     plan.meshes.size(), there, where(*least), in(least->sent.total(), memory.unit),
                     name(memory.unit));
}

constexpr const char* kMeshLegend =
    "R x S x T x p ranks: R groups of S data ranks, T tensor ranks, p stages of a pipeline. A "
    "group shares model states, groups hold copies; under DDP S is 1. A data rank has batch x T x "
    "p samples in a step, in m micro-batches: as many samples over all ranks on every mesh. "
    "Bytes of the fullest rank, and of the rank that sends most; MiB = 2^20, GiB = 2^30, GB = "
    "10^9. \"All\" that is held is a bound: model states, transients and activations (activ.). "
    "What tensor ranks send hides behind nothing. Bubble: the part of a step in which a stage "
    "waits for others.";

Table host_table(const Plan& plan) {
  const Unit unit = plan.unit();
  const std::string u = name(unit);
  Table table({{"", Align::kLeft},
               {"states", Align::kRight, u},
               {"inside", Align::kRight, u, "a rank sends"},
               {"ring", Align::kRight, u, "leaves a host"},
               {"direct", Align::kRight, u, "leaves a host"},
               {"time", Align::kRight, "s"},
               {"from ratio", Align::kRight, "", "pays"},
               {"below", Align::kRight, "GB/s", "pays"}});
  for (const HostPlan& h : plan.hosts) {
    const double from = h.pays_from.value_or(0);
    table.add_row({h.name, in(static_cast<double>(h.states.total()), unit), in(h.inside(), unit),
                   in(h.leaves_by_ring, unit), in(h.leaves_directly, unit), fixed(h.seconds, 3),
                   h.pays_from ? fixed(from, 2) : "-",
                   from > 0 ? fixed(plan.request.machine.bandwidth / from / 1e9, 2) : "-"});
  }
  return table;
}

std::string host_legend(const Request& r) {
  return fmt::format(
      "{} hosts of {} ranks. Ring: ranks in the order of hosts, as many rings as a host has ranks; "
      "direct: to each other rank, as this library sends. Time: communication of a step and "
      "quantising by {}, nothing hidden, without latencies, at {} GB/s of a rank inside its host, "
      "{} GB/s to other hosts, and {} GB/s of values quantised. The links inside and between work "
      "at the same time. A way pays if it takes less time than ZeRO-3: from this ratio of the two "
      "bandwidths on, which is a link between hosts below so many GB/s. Scales are those of blocks "
      "of {} parameters, and of {} gradients. MiB = 2^20, GiB = 2^30, GB = 10^9.",
      base::with_thousands(r.world_size / *r.hosts.ranks_per_host), *r.hosts.ranks_per_host,
      r.hosts.sending == Sending::kRing ? "ring" : "direct sends",
      fixed(r.machine.bandwidth / 1e9, 3), fixed(r.hosts.bandwidth / 1e9, 3),
      fixed(r.hosts.quantize_bandwidth / 1e9, 1), base::with_thousands(r.hosts.block),
      base::with_thousands(r.hosts.gradient_block));
}

// What takes least time, and what does of those that round nothing.
std::string host_verdict(const Plan& plan) {
  const HostPlan *least = nullptr, *exact = nullptr;
  for (const HostPlan& h : plan.hosts) {
    if (least == nullptr || h.seconds < least->seconds) least = &h;
    if (!h.rounds() && (exact == nullptr || h.seconds < exact->seconds)) exact = &h;
  }
  const auto words = [&](const HostPlan& h) {
    return fmt::format("{} ({} s, {} {} of model states)", h.name, fixed(h.seconds, 3),
                       in(static_cast<double>(h.states.total()), plan.unit()), name(plan.unit()));
  };
  return fmt::format("Least time: {}{}.", words(*least),
                     exact == least ? "" : ", and of what rounds nothing " + words(*exact));
}

std::string legend(const Request& r) {
  return wrapped(
             "Bytes of the fullest rank; MiB = 2^20, GiB = 2^30, GB = 10^9. V is one copy of "
             "the parameters. Transients and activations are estimates, and \"all\" is a bound: "
             "they do not peak together.",
             "") +
         wrapped(
             fmt::format(
                 "Times for {} GB/s, {} a collective and {} TFLOP/s attained. Exposed is what one "
                 "link cannot hide behind compute, if ZeRO-1 and ZeRO-2 gather updated parameters "
                 "while the next forward computes (defer_parameter_gather). Break-even batch: "
                 "samples a rank from which on communication, none of it hidden, takes less than "
                 "{} % of compute.",
                 fixed(r.machine.bandwidth / 1e9, 1), in_seconds(r.machine.latency),
                 fixed(r.machine.flops / 1e12, 3), fixed(100 * r.break_even_share, 1)),
             "");
}

}  // namespace

std::string to_text(const Plan& plan) {
  const Request& r = plan.request;
  std::string text = title(r);
  for (const std::string& note : r.model.notes) {
    text += wrapped(fmt::format("note: {}.", note), "  ");
  }
  if (r.hybrid_report) return text + hybrid_text(plan);
  if (!plan.hosts.empty()) {
    return text + fmt::format("\n{}\n{}\n{}", host_table(plan).to_text(),
                              wrapped(host_legend(r), ""), wrapped(host_verdict(plan), "  "));
  }
  if (!plan.meshes.empty()) {
    text += fmt::format("\n{}\n{}", mesh_table(plan).to_text(), wrapped(kMeshLegend, ""));
    return r.memory ? text + "\n" + wrapped(mesh_verdict(plan), "  ") : text;
  }
  text += fmt::format("\n{}\n{}\n{}", memory_table(plan).to_text(), step_table(plan).to_text(),
                      legend(r));
  if (r.world_size > 1) text += fmt::format("\n{}", alternatives(plan));
  if (!r.memory) return text;
  text += fmt::format("\n{}\n", plan.choice.says);
  for (const std::string& reason : plan.choice.reasons)
    text += wrapped(fmt::format("- {}", reason), "  ");
  return text;
}

}  // namespace zero::plan
