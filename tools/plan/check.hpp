#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tools/ladder/ladder_report.hpp>

#include "model.hpp"
#include "timing.hpp"

/// The planner's predictions beside what the ladder measured.
namespace zero::plan {

/// A number that was predicted and measured.
struct Compared {
  double predicted = 0;
  double measured = 0;
  /// (predicted - measured) / measured; 0 where both are 0.
  double error() const;
};

/// One mode of the ladder. Means over the ranks.
struct ModeCheck {
  std::string mode;
  Compared states;  ///< MiB: parameters, gradients and optimizer at rest
  Compared peak;    ///< MiB; predicted is an upper bound
  std::optional<Compared>
      sent;  ///< bytes of gradients and parameters; nothing where the units are unknown
  std::optional<Compared> step;  ///< seconds; nothing without a calibration
  bool calibrates = false;       ///< step times of the others follow from this one's
};

struct Check {
  std::string title;
  /// What the machine attains, from mode ddp: operations and bytes a second while waiting.
  std::optional<Machine> machine;
  double optimizer_elements_per_second = 0;
  std::vector<ModeCheck> modes;
  std::vector<std::string> notes;     ///< modes that the planner does not know, and so on
  std::vector<std::string> failures;  ///< bytes that are not as predicted; a sentence each
};

/// Compares. Model states may be off by ladder::kFormulaTolerance, bytes sent by one in a million,
/// a peak may not be above its bound; anything else is a failure. Times are compared and never
/// fail: the speed of compute, optimizer and wire is taken from mode ddp, the other modes' steps
/// are predicted with it as compute + optimizer (its share of the elements) + bytes / bandwidth,
/// nothing hidden.
///
/// `model`: what was trained, where its name in the report is not a preset. Throws zero::Error
/// where the model has another number of parameters than the report says, the report is not of fp32
/// AdamW, has no mode, or has numbers that check_request() does not let pass.
Check check_against(const ladder::LadderReport& report, const std::optional<Model>& model = {});

std::string to_text(const Check& check);
base::Json to_json(const Check& check);

}  // namespace zero::plan
