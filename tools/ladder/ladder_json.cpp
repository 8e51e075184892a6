#include <nlohmann/json.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

// Every measured value and its key: for ranks, written and read, and for the means of a mode.
template <typename Take>
void for_each_value(const Take& take) {
  take("parameter_mib", &RankRow::parameter_mib);
  take("gradient_mib", &RankRow::gradient_mib);
  take("optimizer_mib", &RankRow::optimizer_mib);
  take("other_mib", &RankRow::other_mib);
  take("total_mib", &RankRow::total_mib);
  take("formula_mib", &RankRow::formula_mib);
  take("peak_mib", &RankRow::peak_mib);
  take("peak_states_mib", &RankRow::peak_states_mib);
  take("resident_growth_mib", &RankRow::resident_growth_mib);
  take("high_water_mib", &RankRow::high_water_mib);
  take("page_faults", &RankRow::page_faults);
  take("sent_gradient_bytes", &RankRow::sent_gradient_bytes);
  take("sent_parameter_bytes", &RankRow::sent_parameter_bytes);
  take("sent_control_bytes", &RankRow::sent_control_bytes);
  take("sent_data_bytes", &RankRow::sent_data_bytes);
  take("sent_pipeline_bytes", &RankRow::sent_pipeline_bytes);
  take("sent_tensor_bytes", &RankRow::sent_tensor_bytes);
  take("sent_between_hosts_bytes", &RankRow::sent_between_hosts_bytes);
  take("step_seconds", &RankRow::step_seconds);
  take("forward_seconds", &RankRow::forward_seconds);
  take("backward_seconds", &RankRow::backward_seconds);
  take("communication_seconds", &RankRow::communication_seconds);
  take("in_flight_seconds", &RankRow::in_flight_seconds);
  take("optimizer_seconds", &RankRow::optimizer_seconds);
}

template <typename Value>
base::Json or_null(const std::optional<Value>& value) {
  return value ? base::Json(*value) : base::Json(nullptr);
}

void add_spread(base::Json& json, const std::string& key, Spread spread) {
  json[key] = spread.mean;
  json[key + "_max"] = spread.max;
}

base::Json mode_to_json(const LadderReport& report, const ModeRow& mode) {
  base::Json json = {{"mode", mode.mode}};
  for_each_value([&](const char* key, auto value) { add_spread(json, key, spread(mode, value)); });
  json["ratio"] = or_null(ratio(report, mode));
  json["formula_difference"] = formula_difference(mode);
  const auto copy = static_cast<double>(report.parameter_bytes);
  const Spread sent = sent_bytes(mode);
  add_spread(json, "sent_bytes_per_rank", sent);
  add_spread(json, "sent_in_v", {.mean = sent.mean / copy, .max = sent.max / copy});
  json["losses"] = mode.losses;
  json["loss_first"] = mode.losses.empty() ? base::Json(nullptr) : base::Json(mode.losses.front());
  json["loss_last"] = mode.losses.empty() ? base::Json(nullptr) : base::Json(mode.losses.back());
  json["every_tensor_changed"] = mode.every_tensor_changed;
  json["batches_differed"] = mode.batches_differed;
  json["gradients_differed"] = mode.gradients_differed;
  json["identical_to_ddp"] = or_null(identical_to_ddp(report, mode));
  json["digest"] = or_null(common_digest(mode));
  json["ranks"] = mode.ranks;
  return json;
}

}  // namespace

void to_json(base::Json& json, const RankRow& rank) {
  json["rank"] = rank.rank;
  for_each_value([&](const char* key, auto value) { json[key] = rank.*value; });
  json["sent_bytes"] = rank.sent_bytes();
  json["digest"] = rank.digest;
}

void from_json(const base::Json& json, RankRow& rank) {
  json.at("rank").get_to(rank.rank);
  for_each_value([&](const char* key, auto value) { json.at(key).get_to(rank.*value); });
  json.at("digest").get_to(rank.digest);
}

base::Json to_json(const LadderReport& report) {
  base::Json json = {
      {"world_size", report.world_size},
      {"mesh",
       {{"data", report.data_ranks()},
        {"pipeline", report.stages},
        {"tensor", report.tensor_ranks}}},
      {"pipeline_schedule",
       report.stages > 1 ? base::Json(report.pipeline_schedule) : base::Json(nullptr)},
      {"sequence_parallel", report.sequence_parallel},
      {"partition_activations", report.partition_activations},
      {"model", report.model},
      {"parameters", report.parameters},
      {"parameter_bytes", report.parameter_bytes},
      {"task", report.task},
      {"dtype", report.dtype},
      {"device", report.device},
      {"optimizer", report.optimizer},
      {"activation_checkpointing", report.activation_checkpointing},
      {"steps", report.steps},
      {"micro_batches", report.micro_batches},
      {"batch_size", report.batch_size},
      {"sequence_length", report.sequence_length},
      {"compute_seconds", or_null(report.compute_seconds)},
      {"modes", base::Json::array()},
  };
  for (const ModeRow& mode : report.modes) json["modes"].push_back(mode_to_json(report, mode));
  if (report.fake_rank) {
    json["fake_process_group"] = {{"size", report.world_size}, {"rank", *report.fake_rank}};
  }
  return json;
}

}  // namespace zero::ladder
