#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include <tools/ladder/ladder_report.hpp>

namespace zero::testing {

/// A report with the figures of SmolLM2-360M on two ranks (sizes and bytes by formula, times made
/// up), for tests of what reads and prints reports.
inline tools::Json ladder_sample() {
  constexpr std::int64_t kParameters = 361'821'120;
  const double copy = ladder::mib(4 * kParameters);
  tools::Json report = {
      {"world_size", 2},
      {"mesh", {{"data", 2}, {"pipeline", 1}, {"tensor", 1}}},
      {"sequence_parallel", false},
      {"partition_activations", false},
      {"model", "smollm2-360m"},
      {"parameters", kParameters},
      {"parameter_bytes", 4 * kParameters},
      {"task", "text"},
      {"dtype", "float32"},
      {"device", "cpu"},
      {"optimizer", "adamw"},
      {"activation_checkpointing", false},
      {"activations_on_host", false},
      {"steps", 3},
      {"micro_batches", 1},
      {"batch_size", 1},
      {"sequence_length", 128},
      {"compute_seconds", nullptr},
  };
  struct Shape {
    const char* mode;
    double parameters, gradients, optimizer, sent_gradients, sent_parameters, activations;
  };
  const Shape shapes[] = {{"ddp", 1, 1, 2, 1, 0, 0.35},
                          {"zero1", 1, 1, 1, 0.5, 0.5, 0.35},
                          {"zero2", 1, 0.5, 1, 0.5, 0.5, 0.40},
                          {"zero3", 0.5, 0.5, 1, 0.5, 0.9, 0.55}};
  for (const Shape& shape : shapes) {
    tools::Json results;
    for (int rank = 0; rank < 2; ++rank) {
      // Whole tensors cannot be split quite evenly: rank 0 has 0.02 % more of what is split.
      const auto share = [&](double part, double whole) {
        return copy * part * (part == whole ? 1 : rank == 0 ? 1.0002 : 0.9998);
      };
      const double parameters = share(shape.parameters, 1), gradients = share(shape.gradients, 1),
                   optimizer = share(shape.optimizer, 2), other = 0.03125;
      const double states = parameters + gradients + optimizer, total = states + other;
      const double peak = total + copy * shape.activations;
      const auto sent_gradients =
          static_cast<std::int64_t>(4e0 * kParameters * shape.sent_gradients);
      const auto sent_parameters =
          static_cast<std::int64_t>(4e0 * kParameters * shape.sent_parameters);
      results.push_back({{"row",
                          {{"rank", rank},
                           {"parameter_mib", parameters},
                           {"gradient_mib", gradients},
                           {"optimizer_mib", optimizer},
                           {"other_mib", other},
                           {"total_mib", total},
                           {"formula_mib", states},
                           {"peak_mib", peak},
                           {"peak_states_mib", total + 100},
                           {"resident_growth_mib", peak + 64},
                           {"high_water_mib", 512},
                           {"sent_gradient_bytes", sent_gradients},
                           {"sent_parameter_bytes", sent_parameters},
                           {"sent_control_bytes", 1024},
                           {"sent_bytes", sent_gradients + sent_parameters + 1024},
                           {"sent_data_bytes", sent_gradients + sent_parameters},
                           {"sent_pipeline_bytes", 0},
                           {"sent_tensor_bytes", 0},
                           {"formula_data_bytes", sent_gradients + sent_parameters},
                           {"formula_pipeline_bytes", 0},
                           {"step_seconds", 6.5},
                           {"forward_seconds", 1.5},
                           {"backward_seconds", 3.25},
                           {"communication_seconds", 1.25},
                           {"in_flight_seconds", 2.75},
                           {"optimizer_seconds", 0.5},
                           {"digest", std::string(64, 'a')}}},
                         {"losses", {10.8312, 10.7201, 10.6008}},
                         {"every_tensor_changed", true},
                         {"batch_digest", std::to_string(rank)},
                         {"gradient_digest", std::to_string(rank)}});
    }
    report["modes"].push_back(ladder::mode_row(shape.mode, /*rounds=*/false, results, /*cell=*/1));
  }
  ladder::derive(report);
  return report;
}

}  // namespace zero::testing
