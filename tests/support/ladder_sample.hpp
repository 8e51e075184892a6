#pragma once

#include <tools/ladder/ladder_report.hpp>

namespace zero::testing {

/// A report with the figures of SmolLM2-360M on two ranks (sizes and bytes by formula, times made
/// up), for tests of what reads and prints reports.
inline ladder::LadderReport ladder_sample() {
  constexpr std::int64_t kParameters = 361'821'120;
  const double copy = ladder::mib(4 * kParameters);
  ladder::LadderReport report{
      .world_size = 2,
      .model = "smollm2-360m",
      .parameters = kParameters,
      .parameter_bytes = 4 * kParameters,
      .task = "text",
      .dtype = "float32",
      .device = "cpu",
      .optimizer = "adamw",
      .steps = 3,
      .batch_size = 1,
      .sequence_length = 128,
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
    ladder::ModeRow mode{.mode = shape.mode,
                         .losses = {10.8312, 10.7201, 10.6008},
                         .every_tensor_changed = true,
                         .batches_differed = true,
                         .gradients_differed = true};
    for (int rank = 0; rank < 2; ++rank) {
      // Whole tensors cannot be split quite evenly: rank 0 has 0.02 % more of what is split.
      const auto share = [&](double part, double whole) {
        return copy * part * (part == whole ? 1 : rank == 0 ? 1.0002 : 0.9998);
      };
      ladder::RankRow row{.rank = rank,
                          .parameter_mib = share(shape.parameters, 1),
                          .gradient_mib = share(shape.gradients, 1),
                          .optimizer_mib = share(shape.optimizer, 2),
                          .other_mib = 0.03125,
                          .resident_growth_mib = 64,
                          .high_water_mib = 512,
                          .page_faults = 1500,
                          .sent_gradient_bytes =
                              static_cast<std::int64_t>(4e0 * kParameters * shape.sent_gradients),
                          .sent_parameter_bytes =
                              static_cast<std::int64_t>(4e0 * kParameters * shape.sent_parameters),
                          .sent_control_bytes = 1024,
                          .step_seconds = 6.5,
                          .forward_seconds = 1.5,
                          .backward_seconds = 3.25,
                          .communication_seconds = 1.25,
                          .in_flight_seconds = 2.75,
                          .optimizer_seconds = 0.5,
                          .digest = std::string(64, 'a')};
      row.formula_mib = row.parameter_mib + row.gradient_mib + row.optimizer_mib;
      row.total_mib = row.formula_mib + row.other_mib;
      row.peak_mib = row.total_mib + copy * shape.activations;
      row.peak_states_mib = row.total_mib + 100;
      row.resident_growth_mib += row.peak_mib;
      mode.ranks.push_back(row);
    }
    report.modes.push_back(mode);
  }
  return report;
}

}  // namespace zero::testing
