#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero/base/json.hpp>
#include <zero/base/table.hpp>

/// What one rank of a fake process group measured, as plain data: table, JSON and verdict. Nothing
/// here communicates or touches a tensor.
///
/// MiB is 2^20 bytes. V is the bytes of one copy of the parameters. Seconds are wall-clock.
namespace zero::ladder {

/// Model states of one rank, in bytes.
struct StateBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
};

/// One mode on that rank.
struct FakeProcessGroupRow {
  std::string mode = {};
  /// The allocator's live bytes after the last step, before gradients are cleared, less those
  /// before the model was built.
  StateBytes measured;
  /// What the stage's own formula says of this rank, with the padding that its layout states.
  StateBytes formula;
  /// Total by the planner's formula, which knows no padding: (bytes of sharded states) x P/N, or of
  /// what this rank owns. Nothing where the mode is none that it knows.
  std::optional<std::int64_t> planned = std::nullopt;
  std::int64_t other = 0;            ///< alive as well, and no model state
  std::int64_t peak = 0;             ///< the highest live bytes within a step
  std::int64_t resident_growth = 0;  ///< of the process's resident set over the run
  /// Gradients and parameters that a real rank would have sent in a step, counted and by formula.
  std::int64_t sent = 0;
  std::int64_t formula_sent = 0;
  double step_seconds = 0;    ///< median over steps, the first left out where there are several
  double source_seconds = 0;  ///< of these: making what the others would have sent
  std::vector<double> losses = {};  ///< of this rank's own samples
  /// Whether the optimizer has changed every piece that this rank updates.
  bool every_piece_changed = false;
};

/// A run of the ladder as one rank of a fake process group.
struct FakeProcessGroupReport {
  int world_size = 1;
  int rank = 0;
  std::string model = {};
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  std::string task = {};
  std::string dtype = {};
  std::string optimizer = {};
  std::int64_t steps = 0;
  std::int64_t batch_size = 0;
  std::int64_t sequence_length = 0;
  std::vector<FakeProcessGroupRow> rows = {};
};

/// (measured - formula) / formula; 0 where both are 0, infinite where only the formula is.
double relative_difference(std::int64_t measured, std::int64_t formula);

/// What the rank held, in MiB, measured beside formula, and what is off, in percent.
base::Table fake_memory_table(const FakeProcessGroupReport& report);
/// What it would have sent, what a step took, its loss, and that weights are not compared.
base::Table fake_step_table(const FakeProcessGroupReport& report);
/// Title, both tables and a legend, for a terminal of 140 columns.
std::string to_text(const FakeProcessGroupReport& report);

/// Everything as JSON; `fake_process_group` in it says what it is, and there is no digest and no
/// comparison of weights. report_from_json() refuses it: these are not figures of a ladder.
base::Json to_json(const FakeProcessGroupReport& report);

/// One row, and back.
base::Json to_json(const FakeProcessGroupRow& row);
FakeProcessGroupRow fake_row_from_json(const base::Json& json);

/// Everything that makes the run a failure, one sentence each that begins with the mode: a model
/// state, or their total, is off its formula by more than kFormulaTolerance; more than
/// kLargestOtherMib is alive beside them; bytes sent are not the formula's; the loss is not finite;
/// a piece was not trained.
std::vector<std::string> verdict(const FakeProcessGroupReport& report);

}  // namespace zero::ladder
