#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "sheet.hpp"

namespace zero::plan {
namespace {

using base::Json, base::fixed, base::with_thousands;

// Breaks a sentence at spaces, for 100 columns; further lines begin with `indent`.
std::string wrapped(const std::string& sentence, const std::string& indent = "") {
  std::istringstream words(sentence);
  std::string text, line, word;
  for (words >> line; words >> word;) {
    if (line.size() + 1 + word.size() <= 100) {
      line += " " + word;
    } else {
      text += line + "\n";
      line = indent + word;
    }
  }
  return text + line + "\n";
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string row_name(const StagePlan& plan) {
  return name(plan.stage) + std::string(plan.offloaded ? " + offload" : "");
}
std::string row_name(const MeshPlan& plan) {
  return fmt::format("{} on {}", name(plan.stage), text(plan.mesh));
}

template <class Row>
Sheet memory_sheet(const Plan& plan, const std::vector<Row>& rows) {
  const std::optional<Memory>& memory = plan.request.memory;
  const std::string unit = name(plan.unit());
  Sheet sheet(plan.unit());
  sheet.columns({"stage"});
  sheet.columns({"params", "grads", "optimizer", "total"}, unit, "model states");
  sheet.columns({"transients", "activations", "all"}, unit);
  if (memory) sheet.columns({"fits"}, at_most(memory->bytes, memory->unit));
  for (const Row& r : rows) {
    std::vector<Json> row = {
        row_name(r),      r.states.parameters, r.states.gradients, r.states.optimizer,
        r.states.total(), r.transients,        r.activations,      r.total()};
    if (r.fits) row.push_back(*r.fits);
    sheet.add(std::move(row));
  }
  return sheet;
}

Sheet step_sheet(const Plan& plan) {
  Sheet sheet(plan.unit());
  sheet.columns({"stage"});
  sheet.columns({"sent"}, name(plan.unit()), "a rank sends").columns({"in V"}, "", "a rank sends");
  sheet.columns({"compute", "communication", "exposed", "all"}, "s", "a step");
  sheet.columns({"break-even batch"});
  const double v = copies(plan.request.model.parameters, plan.request.policy).parameters;
  for (const StagePlan& s : plan.stages) {
    if (s.offloaded) continue;
    sheet.add({row_name(s), s.sent.total(), s.sent.total() / v, s.time.compute,
               s.time.communication, s.time.exposed, s.time.total(), or_null(s.break_even_batch)});
  }
  return sheet;
}

Sheet wire_sheet(const Plan& plan) {
  Sheet sheet(plan.unit());
  sheet.columns({"stage"});
  sheet.columns({"shards", "replicas", "tensor", "pipeline", "all"}, name(plan.unit()),
                "a rank sends along");
  sheet.columns({"micro-batches"}).columns({"bubble"}, "%");
  for (const MeshPlan& m : plan.meshes) {
    sheet.add({row_name(m), m.sent.shards, m.sent.replicas, m.sent.tensor, m.sent.pipeline,
               m.sent.total(), m.micro_batches, m.bubble});
  }
  return sheet;
}

Sheet host_sheet(const Plan& plan) {
  const std::string unit = name(plan.unit());
  Sheet sheet(plan.unit());
  sheet.columns({"way"}).columns({"states"}, unit).columns({"inside"}, unit, "a rank sends");
  sheet.columns({"ring", "direct"}, unit, "leaves a host").columns({"time"}, "s");
  sheet.columns({"from ratio"}, "", "pays").columns({"below"}, "GB/s", "pays");
  for (const HostPlan& h : plan.hosts) {
    const double below = plan.request.machine.bandwidth / h.pays_from.value_or(0) / 1e9;
    sheet.add({h.name, h.states.total(), h.sum().inside, h.leaves_by_ring, h.leaves_directly,
               h.seconds, or_null(h.pays_from), std::isfinite(below) ? Json(below) : Json()});
  }
  return sheet;
}

Sheet hybrid_sheet(const Plan& plan, const std::vector<HybridPart>& parts, const char* what) {
  Sheet sheet(plan.unit());
  sheet.columns({what, "number", "parameters of each", "stage"});
  sheet.columns({"model states", "sent"}, name(plan.unit()), "all of them, of a rank");
  const auto add = [&](const HybridPart& p, const Json& each, const char* stage) {
    sheet.add({p.name, p.count, each, stage, p.states.total(), p.sent});
  };
  for (const HybridPart& part : parts) add(part, part.parameters, name(part.stage));
  for (const Stage stage : {Stage::kZero3, Stage::kZero2}) {
    if (total(parts, stage).count > 0) add(total(parts, stage), "", "together");
  }
  add(total(parts), "", "together");
  return sheet;
}

std::vector<HybridPart> units_of(const Request& r) {
  return hybrid_units(r.model, r.policy, r.world_size, r.hybrid_threshold);
}

std::vector<std::pair<const char*, Sheet>> sheets(const Plan& plan) {
  const Request& r = plan.request;
  if (!plan.hosts.empty()) return {{"hosts", host_sheet(plan)}};
  if (!plan.meshes.empty()) {
    return {{"memory", memory_sheet(plan, plan.meshes)}, {"wire", wire_sheet(plan)}};
  }
  if (!r.hybrid_report) {
    return {{"memory", memory_sheet(plan, plan.stages)}, {"steps", step_sheet(plan)}};
  }
  std::vector<std::pair<const char*, Sheet>> parts;
  const auto modules = hybrid(r.model.modules, r.policy, r.world_size, r.hybrid_threshold);
  if (!modules.empty()) parts.emplace_back("modules", hybrid_sheet(plan, modules, "module"));
  parts.emplace_back("units", hybrid_sheet(plan, units_of(r), "unit"));
  return parts;
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
  return wrapped(fmt::format(
             "{} hosts of {} ranks. Time: communication and quantising of a step by {}, nothing "
             "hidden, at {} GB/s of a rank inside its host, {} GB/s to other hosts and {} GB/s of "
             "values quantised. A way pays if it takes less time than ZeRO-3.",
             plan.request.world_size / *hosts.ranks_per_host, *hosts.ranks_per_host,
             hosts.sending == Sending::kRing ? "ring" : "direct sends",
             fixed(plan.request.machine.bandwidth / 1e9, 3), fixed(hosts.bandwidth / 1e9, 3),
             fixed(hosts.quantize_bandwidth / 1e9, 1))) +
         fmt::format("\nLeast time: {} ({} s). Of what rounds nothing: {} ({} s).\n", least.name,
                     fixed(least.seconds, 3), exact.name, fixed(exact.seconds, 3));
}

std::int64_t crossover(const Request& r) {
  return tensor_parallel_crossover(r.model.largest_unit(), r.model.shape.hidden, r.policy);
}

std::string about_stages(const Plan& plan) {
  const Request& r = plan.request;
  const LookaheadPlan& k = plan.lookahead;
  const std::int64_t even = crossover(r), tokens = r.tokens() * r.world_size;
  std::string text = wrapped(fmt::format(
      "V is one copy of the parameters. Transients and activations are estimates, and \"all\" is a "
      "bound. Times for {} GB/s, {} a collective and {} TFLOP/s attained; exposed is what one link "
      "cannot hide behind compute. From the break-even batch on communication, none of it hidden, "
      "takes less than {} % of compute.",
      fixed(r.machine.bandwidth / 1e9, 1), in_seconds(r.machine.latency),
      fixed(r.machine.flops / 1e12, 3), fixed(100 * r.break_even_share, 1)));
  if (r.world_size == 1) return text;
  if (r.stage.value_or(Stage::kZero3) == Stage::kZero3) {
    text +=
        "\n" +
        wrapped(fmt::format(
            "Lookahead of ZeRO-3: gathering the largest unit takes {}, computing its forward {}: "
            "k* = "
            "{}{}{}.",
            in_seconds(k.gather), in_seconds(k.compute), k.needed,
            k.used < k.needed ? fmt::format(", but there is room for {} units ahead", k.used) : "",
            k.always_waits
                ? "; all gathers together take longer than computing, and the difference "
                  "stays exposed with any k"
                : ""));
  }
  return text + "\n" +
         wrapped(fmt::format("For a layer ZeRO-3 sends {} than tensor parallelism over all {} "
                             "ranks would: they are even "
                             "at {} tokens over all ranks, this step has {}.",
                             tokens < even ? "more" : "less", with_thousands(r.world_size),
                             with_thousands(even), with_thousands(tokens)));
}

std::string paragraphs(const Plan& plan) {
  if (!plan.hosts.empty()) return about_hosts(plan);
  if (!plan.meshes.empty()) {
    return wrapped(
        "R x S x T x p: R groups of S data ranks, T tensor ranks, p stages of a pipeline. A data "
        "rank has batch x T x p samples in a step. \"All\" that is held is a bound, and sent is by "
        "the rank that sends most.");
  }
  if (plan.request.hybrid_report) {
    return wrapped(
        fmt::format("{} parameters and more are under ZeRO-3, fewer under ZeRO-2: by "
                    "module, or by unit as whole_below of engine3.",
                    with_thousands(plan.request.hybrid_threshold)));
  }
  std::string text = about_stages(plan);
  if (plan.request.memory) text += "\n" + plan.choice.says + "\n";
  for (const std::string& reason : plan.choice.reasons) text += wrapped("- " + reason, "  ");
  return text;
}

// Memory against communication.
Json point(const std::string& what, double sent, const States& states) {
  return {{"name", what}, {"sent_bytes", sent}, {"model_state_bytes", states.total()}};
}

// From DDP to ZeRO-3 at several world sizes, and beside that.
void add_curves(const Plan& plan, Json& json) {
  const Request& r = plan.request;
  const Copies one = copies(r.model.parameters, r.policy);
  const auto states = [&](Stage stage, std::int64_t n) {
    return model_states(r.model.parameters, r.policy, stage, n);
  };
  for (const std::int64_t n : std::set<std::int64_t>{2, 8, 64, r.world_size}) {
    Json points = Json::array();
    for (const Stage stage : kStages) {
      const double bytes = sent(scheme_of(stage), one, n).total();
      points.push_back(point(name(stage), bytes, states(stage, n)));
    }
    json["curves"].push_back({{"world_size", n}, {"points", points}});
  }
  const HybridPart all = total(units_of(r)), large = total(units_of(r), Stage::kZero3);
  const double naive = sent(Scheme::kZero1Naive, one, r.world_size).total();
  json["beside"].push_back(point("ZeRO-1 naive", naive, states(Stage::kZero1, r.world_size)));
  if (large.count > 0 && large.count < all.count) {
    json["beside"].push_back(point("hybrid", all.sent, all.states));
  }
  for (const StagePlan& s : plan.stages) {
    if (!s.offloaded) continue;
    const double bytes = sent(Scheme::kZero3, one, r.world_size).total();
    json["beside"].push_back(point(row_name(s), bytes, s.states));
  }
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text = title(plan.request);
  for (const auto& [key, sheet] : sheets(plan)) text += "\n" + sheet.to_text();
  return text +
         "\nBytes of the fullest rank; MiB = 2^20, GiB = 2^30, GB = 10^9. docs/planner.md explains "
         "all columns.\n" +
         paragraphs(plan);
}

Json to_json(const Plan& plan) {
  const Request& r = plan.request;
  const LookaheadPlan& k = plan.lookahead;
  const Choice& choice = plan.choice;
  const auto stage = [](std::optional<Stage> s) { return s ? Json(name(*s)) : Json(); };
  Json json = {{"model", r.model.name},
               {"parameters", r.model.parameters},
               {"policy", {{"name", r.policy.name}}},
               {"world_size", r.world_size},
               {"memory_bytes", r.memory ? Json(r.memory->bytes) : Json()},
               {"notes", r.model.notes},
               {"tensor_parallel_crossover_tokens", crossover(r)}};
  json["lookahead"] = {{"needed", k.needed}, {"room", or_null(k.room)}, {"used", k.used}};
  json["choice"] = {{"stage", stage(choice.stage)},
                    {"next", stage(choice.next)},
                    {"says", choice.says},
                    {"reasons", choice.reasons},
                    {"ranks_for_model_states", or_null(choice.ranks_for_states)},
                    {"ranks_for_all", or_null(choice.ranks_for_all)}};
  for (const auto& [key, sheet] : sheets(plan)) json[key] = sheet.to_json();
  add_curves(plan, json);
  return json;
}

}  // namespace zero::plan
