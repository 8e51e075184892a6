// What sources say against their own formulas. Every right-hand side is computed.

#include <fmt/format.h>

#include "alternatives.hpp"
#include "planner.hpp"
#include "quantity.hpp"
#include "tables.hpp"

namespace zero::plan {
namespace {

using base::fixed;

std::string gb(std::int64_t billions, Stage stage, std::int64_t n, int decimals = 1) {
  const States states = model_states(billions * kBillion, mixed(), stage, n);
  return in(static_cast<double>(states.total()), Unit::kGB, decimals);
}

std::string optimizer_gb(const Policy& policy) {
  const States states = model_states(7 * kBillion, policy, Stage::kDdp, 1);
  return in(static_cast<double>(states.optimizer), Unit::kGB, 0);
}

std::string in_v(Scheme scheme) {
  return fixed(volume(scheme, {1, 1}, /*world_size=*/8).total(), 0) + " V (N-1)/N";
}

std::string break_even(std::int64_t billions) {
  const Machine machine;
  const double bytes = volume(Scheme::kZero3, copies(billions * kBillion, mixed()), 8).total();
  const double seconds = communication_seconds(bytes, collectives(Scheme::kZero3, 32), machine);
  return fmt::format("{}", *break_even_batch(seconds, billions * kBillion, 2048, 0.05, machine));
}

std::string partitioning_saves(std::int64_t tensor_parallel) {
  const Shape shape = model_of_size(7 * kBillion, 32).shape;
  const double kept =
      layer_bytes_under_tensor_parallelism(shape, 2048, 2, tensor_parallel, /*partitioned=*/false);
  const double partitioned =
      layer_bytes_under_tensor_parallelism(shape, 2048, 2, tensor_parallel, /*partitioned=*/true);
  return fixed(100 * (1 - partitioned / kept), 0) + " %";
}

std::string zeroed_gradients() {
  const auto amount = [](Unowned unowned) {
    return in(static_cast<double>(resident_gradients(7 * kBillion, mixed(), 8, unowned)),
              Unit::kGB);
  };
  return fmt::format("7 B on 8 ranks: kept {} GB, zeroed {} GB, freed {} GB",
                     amount(Unowned::kKept), amount(Unowned::kZeroed), amount(Unowned::kFreed));
}

std::string fsdp_without_reshard() {
  const Model model = model_of_size(7 * kBillion, 32);
  const ParameterResidency bytes =
      zero3_parameters(Scheme::kZero3Kept, model.parameters, model.largest_unit(), mixed(), 8);
  return fmt::format(
      "sharded at rest ({} GB of 7 B, 8 ranks), whole from forward to backward ({} GB)",
      in(static_cast<double>(bytes.at_rest), Unit::kGB),
      in(static_cast<double>(bytes.peak), Unit::kGB));
}

}  // namespace

std::vector<Contradiction> contradictions() {
  std::vector<Contradiction> all;
  all.push_back({"7 B: ZeRO-1 30.6 and 28.2 GB at 64 and 256 ranks, ZeRO-2 17.1 at 64",
                 fmt::format("{}, {}, {} GB", gb(7, Stage::kZero1, 64), gb(7, Stage::kZero1, 256),
                             gb(7, Stage::kZero2, 64))});
  all.push_back({"7 B, mixed: Adam states 56 GB in one place, 28 GB in another",
                 fmt::format("{} GB with master weights, {} without", optimizer_gb(mixed()),
                             optimizer_gb(mixed_without_master()))});
  all.push_back({"break-even batch 15, 8, 2 for 7 B, 13 B, 70 B",
                 fmt::format("{}, {}, {}", break_even(7), break_even(13), break_even(70))});
  const Hybrid small = hybrid(0, kBillion, mixed(), 8);
  all.push_back({"hybrid: ZeRO-2's wire on small units 2 P bytes, so a saving of 3",
                 fmt::format("{} P with the parameters' all-gather, a saving of {}",
                             fixed(small.volume / kBillion, 0), fixed(small.saving_on_small, 1))});
  all.push_back({"ZeRO-2 sends about twice what data parallelism sends",
                 fmt::format("{} and {}: the same", in_v(Scheme::kZero2), in_v(Scheme::kDdp))});
  all.push_back({"13 B fits eight cards of 24 GB under ZeRO-3",
                 fmt::format("{} GB of model states: it does not", gb(13, Stage::kZero3, 8, 2))});
  all.push_back({"ZeRO-1 drawn with an all-reduce and an all-gather",
                 fmt::format("{}; with a reduce-scatter in its place {}", in_v(Scheme::kZero1Naive),
                             in_v(Scheme::kZero1))});
  all.push_back(
      {"\"default to ZeRO-1\" and \"never use ZeRO-1\"",
       fmt::format("{} as DDP: it is free; so is ZeRO-2 ({}) where gradients can leave as "
                   "they arrive",
                   in_v(Scheme::kZero1), in_v(Scheme::kZero2))});
  all.push_back({"FSDP2 without reshard does not shard parameters", fsdp_without_reshard()});
  all.push_back({"activations are partitioned over data-parallel ranks (ZeRO-R)",
                 fmt::format("saves {} in data parallelism, where nothing is replicated; {} of a "
                             "layer's with 8-way tensor parallelism",
                             partitioning_saves(1), partitioning_saves(8))});
  all.push_back({"zero out the gradients that you do not own", zeroed_gradients()});
  return all;
}

std::string tables_text() {
  std::string text;
  const auto chapter = [&](const std::string& title, const std::vector<NamedTable>& tables) {
    text +=
        fmt::format("{}{}\n{}\n", text.empty() ? "" : "\n", title, std::string(title.size(), '='));
    for (const NamedTable& t : tables) {
      text += fmt::format("\n{}\n\n{}", t.title, t.table.to_text());
      for (const std::string& note : t.notes) text += note + "\n";
    }
  };
  chapter("1. The ladder", ladder_tables());
  chapter("2. Model states", model_state_tables());
  chapter("3. Communication", communication_tables());
  chapter("4. Choosing and hiding", choosing_tables());
  const std::string title = "5. Where sources contradict their own formulas";
  text += fmt::format("\n{}\n{}\n\n", title, std::string(title.size(), '='));
  for (const Contradiction& c : contradictions()) {
    text += fmt::format("said:    {}\nfollows: {}\n\n", c.said, c.follows);
  }
  text += "MiB = 2^20, GiB = 2^30, GB = 10^9 bytes.\n";
  return text;
}

}  // namespace zero::plan
