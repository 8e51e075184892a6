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

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string row_name(const Plan& plan, const StagePlan& row) {
  const std::string offload = row.offloaded ? " + offload" : row.disk ? " + disk" : "";
  return name(row.stage) + (plan.request.has_mesh() ? " on " + text(row.mesh) : offload);
}

Sheet memory_sheet(const Plan& plan) {
  const Request& r = plan.request;
  Sheet sheet(plan.unit());
  sheet.columns({"stage"});
  sheet.columns({"params", "grads", "optimizer", "total"}, name(plan.unit()), "model states");
  sheet.columns({"transients", "activations", "all"}, name(plan.unit()));
  if (r.memory) sheet.columns({"fits"}, at_most(r.memory->bytes, r.memory->unit));
  for (const StagePlan& s : plan.stages) {
    std::vector<Json> row = {
        row_name(plan, s), s.states.parameters, s.states.gradients, s.states.optimizer,
        s.states.total(),  s.transients,        s.activations,      s.total()};
    if (r.memory) row.push_back(r.fits(s));
    sheet.add(row);
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
    sheet.add({row_name(plan, s), s.sent.total(), s.sent.total() / v, s.time.compute,
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
  for (const StagePlan& s : plan.stages) {
    sheet.add({row_name(plan, s), s.sent.shards, s.sent.replicas, s.sent.tensor, s.sent.pipeline,
               s.sent.total(), s.micro_batches, s.bubble()});
  }
  return sheet;
}

Sheet host_sheet(const Plan& plan) {
  const std::string unit = name(plan.unit());
  Sheet sheet(plan.unit());
  sheet.columns({"way"}).columns({"states"}, unit).columns({"inside"}, unit, "a rank sends");
  sheet.columns({"ring", "here"}, unit, "leaves a host").columns({"time"}, "s");
  sheet.columns({"from ratio"}, "", "pays").columns({"below"}, "GB/s", "pays");
  for (const HostPlan& h : plan.hosts) {
    const double ratio = h.pays_from.value_or(NAN);
    sheet.add({h.name, h.states.total(), h.sum().inside, h.leaves_by_ring, h.leaves_here, h.seconds,
               ratio, plan.request.machine.bandwidth / ratio / 1e9});
  }
  return sheet;
}

Sheet hybrid_sheet(const Plan& plan, const std::vector<HybridPart>& parts, const char* what) {
  Sheet sheet(plan.unit());
  sheet.columns({what, "number", "parameters of each", "stage"});
  sheet.columns({"model states", "sent"}, name(plan.unit()), "all of them, of a rank");
  const auto add = [&](const HybridPart& p, const Json& each, const char* stage) {
    sheet.add({p.name, p.count, each, stage, p.states, p.sent});
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
  if (r.has_mesh()) return {{"memory", memory_sheet(plan)}, {"wire", wire_sheet(plan)}};
  if (!r.hybrid) return {{"memory", memory_sheet(plan)}, {"steps", step_sheet(plan)}};
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
  return say("{} hosts of {} ranks. Time: communication and quantizing of a step by {}, nothing "
             "hidden, at {} GB/s of a rank inside its host, {} GB/s to other hosts and {} GB/s of "
             "values quantized. A way pays if it takes less time than ZeRO-3.",
             plan.request.world_size / *hosts.ranks_per_host, *hosts.ranks_per_host,
             hosts.sending == Sending::kRing ? "ring" : "direct sends",
             fixed(plan.request.machine.bandwidth / 1e9, 3), fixed(hosts.bandwidth / 1e9, 3),
             fixed(hosts.quantize_bandwidth / 1e9, 1)) +
         say("\nLeast time: {} ({} s). Of what rounds nothing: {} ({} s).", least.name,
             fixed(least.seconds, 3), exact.name, fixed(exact.seconds, 3));
}

std::int64_t crossover(const Request& r) {
  return tensor_parallel_crossover(r.model.largest_unit(), r.model.shape.hidden, r.policy);
}

std::string about_disk(const Plan& plan, const StagePlan& row) {
  if (!row.disk) return "";
  const double both = row.time.compute + row.time.exposed - row.disk->seconds;
  return say(
      "\nOn a disk: a rank has a file of {} and two tiles in memory. A step reads and writes {}, "
      "which takes {} at {} GB/s. The update waits for it: {} in all. Hidden behind all else it "
      "would be max({}, {}) = {}.",
      at_least(row.disk->file, plan.unit()), at_least(row.disk->moved, plan.unit()),
      in_seconds(row.disk->seconds), fixed(*plan.request.disk.bandwidth / 1e9, 1),
      in_seconds(row.time.total()), in_seconds(both), in_seconds(row.disk->seconds),
      in_seconds(std::max(both, row.disk->seconds)));
}

std::string about_inputs(const Plan& plan) {
  if (!plan.request.activations_on_host) return "";
  const InputsOnHost& inputs = plan.stages.front().inputs;
  return say(
      "\nInputs of layers on the host: {} stay on the device, the host has {}, and {} cross the "
      "bus "
      "in a micro-batch.",
      at_least(inputs.device, plan.unit()), at_least(inputs.host, plan.unit()),
      at_least(inputs.bus, plan.unit()));
}

std::string about_stages(const Plan& plan) {
  const Request& r = plan.request;
  const LookaheadPlan& k = plan.lookahead;
  const std::int64_t tokens = r.tokens() * r.world_size, even = crossover(r);
  std::string text =
      say("V is one copy of the parameters. Transients and activations are estimates, and \"all\" "
          "is a bound. Times for {} GB/s, {} a collective and {} TFLOP/s attained; exposed is what "
          "one link cannot hide behind compute. From the break-even batch on communication, none "
          "of it hidden, takes less than {} % of compute.",
          fixed(r.machine.bandwidth / 1e9, 1), in_seconds(r.machine.latency),
          fixed(r.machine.flops / 1e12, 3), fixed(100 * r.break_even_share, 1));
  for (const StagePlan& row : plan.stages) text += about_disk(plan, row);
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
               "data "
               "rank has batch x T x p samples in a step. \"All\" that is held is a bound, and "
               "sent is by "
               "the rank that sends most.") +
           about_inputs(plan);
  }
  if (plan.request.hybrid) {
    return say(
        "{} parameters and more are under ZeRO-3, fewer under ZeRO-2: by module, or by unit as "
        "whole_below of engine3.",
        with_thousands(plan.request.hybrid_threshold));
  }
  return about_stages(plan) + about_inputs(plan) +
         (plan.request.memory ? "\n" + wrapped(plan.choice.says) : "");
}

// Memory against communication: from DDP to ZeRO-3 at several world sizes, and beside that.
void add_curves(const Plan& plan, Json& json) {
  const Request& r = plan.request;
  const auto point = [&](const std::string& what, double sent, std::int64_t states) {
    return Json{{"name", what}, {"sent_bytes", sent}, {"model_state_bytes", states}};
  };
  const auto of = [&](const std::string& what, Scheme scheme, Stage stage, std::int64_t n) {
    return point(what, sent(scheme, copies(r.model.parameters, r.policy), n).total(),
                 model_states(r.model.parameters, r.policy, stage, n).total());
  };
  for (const std::int64_t n : std::set<std::int64_t>{2, 8, 64, r.world_size}) {
    Json points;
    for (const Stage s : kStages) points.push_back(of(name(s), scheme_of(s), s, n));
    json["curves"].push_back({{"world_size", n}, {"points", points}});
  }
  Json& beside = json["beside"];
  beside.push_back(of("ZeRO-1 naive", Scheme::kZero1Naive, Stage::kZero1, r.world_size));
  const HybridPart all = total(units_of(r)), large = total(units_of(r), Stage::kZero3);
  if (large.count > 0 && large.count < all.count) {
    beside.push_back(point("hybrid", all.sent, all.states));
  }
  if (r.policy.optimizer > 0 && r.stage.value_or(Stage::kZero3) == Stage::kZero3) {
    const Policy on_device = {"", r.policy.parameter, r.policy.gradient, 0};
    const auto held = model_states(r.model.parameters, on_device, Stage::kZero3, r.world_size);
    beside.push_back(of("ZeRO-3 + offload", Scheme::kZero3, Stage::kZero3, r.world_size));
    beside.back()["model_state_bytes"] = held.total();
  }
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
  std::string text = title(plan.request);
  for (const auto& [key, sheet] : sheets(plan)) text += "\n" + sheet.to_text();
  return text +
         "\nBytes of the fullest rank; MiB = 2^20, GiB = 2^30, GB = 10^9. docs/planner.md explains "
         "all columns.\n" +
         paragraphs(plan);
}

Json to_json(const Plan& plan) {
  const Request& r = plan.request;
  const Choice& choice = plan.choice;
  const auto stage = [](const std::optional<StagePlan>& s) {
    return s ? Json(name(s->stage)) : Json();
  };
  Json json = {{"model", r.model.name},
               {"parameters", r.model.parameters},
               {"policy", {{"name", r.policy.name}}},
               {"world_size", r.world_size},
               {"memory_bytes", r.memory ? Json(r.memory->bytes) : Json()},
               {"notes", r.model.notes},
               {"tensor_parallel_crossover_tokens", crossover(r)},
               {"lookahead", {{"needed", plan.lookahead.needed}, {"used", plan.lookahead.used}}},
               {"choice",
                {{"stage", stage(choice.taken)},
                 {"next", stage(choice.next)},
                 {"says", choice.says},
                 {"ranks_for_model_states", or_null(choice.ranks_for_states)},
                 {"ranks_for_all", or_null(choice.ranks_for_all)}}}};
  for (const auto& [key, sheet] : sheets(plan)) json[key] = sheet.to_json();
  if (r.activations_on_host) {
    const auto& [device, host, bus] = plan.stages.front().inputs;
    json["inputs_on_host"] = {{"device_bytes", device}, {"host_bytes", host}, {"bus_bytes", bus}};
  }
  add_curves(plan, json);
  return json;
}

std::string scenarios(Request request) {
  Sheet sheet(Unit::kGB);
  sheet.columns({"parameters", "ranks", "memory", "link", "batch", "take"});
  sheet.columns({"step", "exposed"}, "s").columns({""}, "", "next best");
  sheet.columns({"time"}, "%", "next best").columns({"memory"}, "GB", "next best");
  for (const char* scenario : kScenarios) {
    std::istringstream words(scenario);
    std::string parameters, memory, bandwidth;
    words >> parameters >> request.world_size >> memory >> bandwidth >> request.batch;
    request.model = model_of_size(parse_count(parameters));
    request.memory = parse_memory(memory);
    request.machine.bandwidth = parse_bandwidth(bandwidth);
    const auto [taken, next, says, for_states, for_all] = make_plan(request).choice;
    std::vector<Json> row = {parameters, request.world_size, memory, bandwidth, request.batch};
    if (taken) {
      row.insert(row.end(), {name(taken->stage), taken->time.total(), taken->time.exposed});
    } else {
      row.insert(row.end(), {"none", {}, {}, for_all ? fmt::format("{} ranks", *for_all) : "-"});
    }
    if (next) {
      row.insert(row.end(), {name(next->stage), next->time.total() / taken->time.total() - 1,
                             next->total() - taken->total()});
    }
    row.resize(11);
    sheet.add(row);
  }
  return sheet.to_text();
}

}  // namespace zero::plan
