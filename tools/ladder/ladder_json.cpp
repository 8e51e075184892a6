#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

struct RealField {
  const char* key;
  double RankRow::*value;
};
struct IntegerField {
  const char* key;
  std::int64_t RankRow::*value;
};

// One list for writing and reading, for ranks and for the means of a mode.
constexpr RealField kMemory[] = {
    {"parameter_mib", &RankRow::parameter_mib},
    {"gradient_mib", &RankRow::gradient_mib},
    {"optimizer_mib", &RankRow::optimizer_mib},
    {"other_mib", &RankRow::other_mib},
    {"total_mib", &RankRow::total_mib},
    {"peak_mib", &RankRow::peak_mib},
    {"peak_states_mib", &RankRow::peak_states_mib},
    {"resident_growth_mib", &RankRow::resident_growth_mib},
    {"high_water_mib", &RankRow::high_water_mib},
    {"page_faults", &RankRow::page_faults},
};
constexpr IntegerField kSent[] = {
    {"sent_gradient_bytes", &RankRow::sent_gradient_bytes},
    {"sent_parameter_bytes", &RankRow::sent_parameter_bytes},
    {"sent_control_bytes", &RankRow::sent_control_bytes},
};
constexpr RealField kSeconds[] = {
    {"step_seconds", &RankRow::step_seconds},
    {"forward_seconds", &RankRow::forward_seconds},
    {"backward_seconds", &RankRow::backward_seconds},
    {"communication_seconds", &RankRow::communication_seconds},
    {"in_flight_seconds", &RankRow::in_flight_seconds},
    {"optimizer_seconds", &RankRow::optimizer_seconds},
};

template <typename Value>
base::Json or_null(const std::optional<Value>& value) {
  return value ? base::Json(*value) : base::Json(nullptr);
}

void add_spread(base::Json& json, const std::string& key, Spread spread) {
  json[key] = spread.mean;
  json[key + "_max"] = spread.max;
}

base::Json rank_to_json(const RankRow& rank) {
  base::Json json = {{"rank", rank.rank}};
  for (const RealField& field : kMemory) json[field.key] = rank.*field.value;
  json["formula_mib"] = or_null(rank.formula_mib);
  json["sent_bytes"] = rank.sent_bytes();
  for (const IntegerField& field : kSent) json[field.key] = rank.*field.value;
  for (const RealField& field : kSeconds) json[field.key] = rank.*field.value;
  json["digest"] = rank.digest;
  return json;
}

// A number that was not finite was written as null.
double real_from(const base::Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

RankRow rank_from_json(const base::Json& json) {
  RankRow rank;
  rank.rank = json.at("rank").get<int>();
  for (const RealField& field : kMemory) rank.*field.value = real_from(json.at(field.key));
  for (const IntegerField& field : kSent) {
    rank.*field.value = json.at(field.key).get<std::int64_t>();
  }
  for (const RealField& field : kSeconds) rank.*field.value = real_from(json.at(field.key));
  const base::Json& formula = json.at("formula_mib");
  if (!formula.is_null()) rank.formula_mib = formula.get<double>();
  rank.digest = json.at("digest").get<std::string>();
  return rank;
}

ModeRow mode_from(const base::Json& json) {
  ModeRow mode;
  mode.mode = json.at("mode").get<std::string>();
  mode.formula_mib = real_from(json.at("formula_mib"));
  for (const base::Json& loss : json.at("losses")) mode.losses.push_back(real_from(loss));
  mode.every_tensor_changed = json.at("every_tensor_changed").get<bool>();
  mode.batches_differed = json.at("batches_differed").get<bool>();
  mode.gradients_differed = json.at("gradients_differed").get<bool>();
  for (const base::Json& rank : json.at("ranks")) mode.ranks.push_back(rank_from_json(rank));
  return mode;
}

}  // namespace

base::Json to_json(const LadderReport& report, const ModeRow& mode) {
  base::Json json = {{"mode", mode.mode}};
  for (const RealField& field : kMemory) add_spread(json, field.key, spread(mode, field.value));
  json["ratio"] = or_null(ratio(report, mode));
  json["formula_mib"] = mode.formula_mib;
  json["formula_difference"] = formula_difference(mode);

  const auto copy = static_cast<double>(report.parameter_bytes);
  const Spread sent = sent_bytes(mode);
  add_spread(json, "sent_bytes_per_rank", sent);
  add_spread(json, "sent_in_v", {.mean = sent.mean / copy, .max = sent.max / copy});
  for (const IntegerField& field : kSent) add_spread(json, field.key, spread(mode, field.value));
  for (const RealField& field : kSeconds) add_spread(json, field.key, spread(mode, field.value));

  json["losses"] = mode.losses;
  json["loss_first"] = mode.losses.empty() ? base::Json(nullptr) : base::Json(mode.losses.front());
  json["loss_last"] = mode.losses.empty() ? base::Json(nullptr) : base::Json(mode.losses.back());
  json["every_tensor_changed"] = mode.every_tensor_changed;
  json["batches_differed"] = mode.batches_differed;
  json["gradients_differed"] = mode.gradients_differed;
  json["identical_to_ddp"] = or_null(identical_to_ddp(report, mode));
  json["digest"] = or_null(common_digest(mode));
  json["ranks"] = base::Json::array();
  for (const RankRow& rank : mode.ranks) json["ranks"].push_back(rank_to_json(rank));
  return json;
}

base::Json to_json(const LadderReport& report) {
  base::Json json = {
      {"world_size", report.world_size},
      {"model", report.model},
      {"parameters", report.parameters},
      {"parameter_bytes", report.parameter_bytes},
      {"task", report.task},
      {"dtype", report.dtype},
      {"device", report.device},
      {"optimizer", report.optimizer},
      {"steps", report.steps},
      {"batch_size", report.batch_size},
      {"sequence_length", report.sequence_length},
      {"compute_seconds", or_null(report.compute_seconds)},
      {"modes", base::Json::array()},
  };
  for (const ModeRow& mode : report.modes) json["modes"].push_back(to_json(report, mode));
  if (report.fake_rank) {
    json["fake_process_group"] = {{"size", report.world_size}, {"rank", *report.fake_rank}};
  }
  return json;
}

ModeRow mode_from_json(const base::Json& json) {
  try {
    return mode_from(json);
  } catch (const base::Json::exception& exception) {
    throw Error(fmt::format("this is no mode of the ladder's report: {}", exception.what()));
  }
}

}  // namespace zero::ladder
