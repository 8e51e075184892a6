#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero/base/json.hpp>

/// What the ladder measured, as plain data: rows to fill, numbers derived from them, tables, JSON,
/// and the verdict. Nothing here communicates or touches a tensor.
///
/// MiB is 2^20 bytes. V is the bytes of one copy of the parameters. Seconds are wall-clock.
namespace zero::ladder {

/// Measured model states (the total less "other") may differ from their formula by this fraction.
inline constexpr double kFormulaTolerance = 0.001;
/// At most this much may be alive at rest that is no model state.
inline constexpr double kLargestOtherMib = 1.0;
/// In modes with groups of ranks, as much more for each rank: a group of a host has room for a
/// block of every peer.
inline constexpr double kGroupBlockMib = 0.25;

/// Bytes as MiB, exactly for every size below 2^53.
constexpr double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// What one rank measured in one mode.
struct RankRow {
  int rank = 0;

  /// Steady state: resident after the optimizer step and sync_parameters, before gradients are
  /// cleared. By category of the allocator.
  double parameter_mib = 0;
  double gradient_mib = 0;
  double optimizer_mib = 0;
  /// Everything else that was allocated since before the model was built.
  double other_mib = 0;
  /// The allocator's live bytes minus those before the model was built. Measured, not the sum of
  /// the above.
  double total_mib = 0;
  /// The total of model states that the formula predicts for this rank.
  double formula_mib = 0;
  /// The highest live bytes within a step, minus those before the model was built.
  double peak_mib = 0;
  /// The highest live bytes of parameters, gradients and optimizer states together within a step.
  double peak_states_mib = 0;
  /// Growth of the process's resident set over the run, which also sees what no allocator does.
  double resident_growth_mib = 0;
  /// The largest resident set that the process ever had, from its start to the end of training.
  double high_water_mib = 0;
  /// Pages that the system handed out or looked up within a step, each a fault of its own; the
  /// median over the measured steps.
  double page_faults = 0;

  /// Bytes sent by this rank in one step on the data axis, by purpose.
  std::int64_t sent_gradient_bytes = 0;
  std::int64_t sent_parameter_bytes = 0;
  std::int64_t sent_control_bytes = 0;
  /// Bytes sent along each axis of the mesh, control messages not counted. On the data axis they
  /// are the gradients and parameters above.
  std::int64_t sent_data_bytes = 0;
  std::int64_t sent_pipeline_bytes = 0;
  std::int64_t sent_tensor_bytes = 0;
  /// Of everything that this rank sent in one step, what went to ranks on other hosts.
  std::int64_t sent_between_hosts_bytes = 0;

  /// Medians over the measured steps. Communication is the time spent waiting for collectives; the
  /// other phases exclude it.
  double step_seconds = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double communication_seconds = 0;
  /// Seconds in which something was in flight: started, and not yet waited for to the end.
  double in_flight_seconds = 0;
  double optimizer_seconds = 0;

  /// SHA-256 over the bytes of every tensor of the whole model after the last step, as this rank
  /// and those that share the model with it hold them, gathered where sharded; 64 hexadecimal
  /// digits.
  std::string digest = {};

  std::int64_t sent_bytes() const {
    return sent_gradient_bytes + sent_parameter_bytes + sent_control_bytes;
  }
};

/// One mode of the ladder: its ranks in order, and what they agree on.
struct ModeRow {
  /// As on the command line: "ddp", "zero1", "zero1:naive".
  std::string mode = {};
  std::vector<RankRow> ranks = {};
  /// Loss of every step, the mean over ranks.
  std::vector<double> losses = {};

  /// Equal weights prove something only if all three hold: no trainable tensor kept its first
  /// value, no two ranks of a data axis saw the same batch, and none had the same gradients before
  /// the reduction.
  bool every_tensor_changed = false;
  bool batches_differed = false;
  bool gradients_differed = false;
  /// What is sent is rounded, so that the weights are close to DDP's and not equal.
  bool rounds = false;
};

/// A run of the ladder.
struct LadderReport {
  int world_size = 1;
  /// Of a fake process group of `world_size` ranks, the one that ran: nothing was sent, and each
  /// mode has its row alone. Nothing: real ranks.
  std::optional<int> fake_rank = std::nullopt;
  /// The ranks as a mesh, data x pipeline x tensor; the other ranks are on the data axis.
  int stages = 1;
  int tensor_ranks = 1;
  std::string pipeline_schedule = {};
  bool sequence_parallel = false;
  bool partition_activations = false;
  std::string model = {};
  /// Elements, and the bytes of one copy of them (V).
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  /// How it was trained, for the title of tables and pictures.
  std::string task = {};
  std::string dtype = {};
  std::string device = {};
  std::string optimizer = {};
  bool activation_checkpointing = false;
  std::int64_t steps = 0;
  std::int64_t micro_batches = 1;  ///< of a step
  /// Samples of a rank in a micro-batch, and their length in tokens.
  std::int64_t batch_size = 0;
  std::int64_t sequence_length = 0;
  /// Seconds of a whole step when every rank trains by itself at the same time and sends nothing,
  /// measured in the same run; if known, steps are also shown relative to it.
  std::optional<double> compute_seconds = std::nullopt;
  std::vector<ModeRow> modes = {};

  bool has_mesh() const { return stages * tensor_ranks > 1; }
  int data_ranks() const { return world_size / (stages * tensor_ranks); }
};

/// " (data 2 x pipeline 2 x tensor 2)"; empty if all ranks are on the data axis.
std::string mesh_text(const LadderReport& report);
/// What a rank has in a step: "2 micro-batches of 1 x 128 tokens a rank", "1 x 128 tokens a rank".
std::string batch_text(const LadderReport& report);

/// Mean and maximum of a value over the ranks of a mode; 0 and 0 if it has none.
struct Spread {
  double mean = 0;
  double max = 0;
};
Spread spread(const ModeRow& mode, double RankRow::*value);
Spread spread(const ModeRow& mode, std::int64_t RankRow::*value);
/// Bytes sent by a rank in a step on the data axis, all purposes together.
Spread sent_bytes(const ModeRow& mode);

/// The row of mode "ddp", or of ddp in the order of a mesh, "hddp"; nullptr if neither ran.
const ModeRow* ddp_row(const LadderReport& report);

/// Mean total of the mode over DDP's; nothing if mode "ddp" did not run.
std::optional<double> ratio(const LadderReport& report, const ModeRow& mode);

/// (mean total - formula) / formula. Not a number if there is no formula.
double formula_difference(const ModeRow& mode);

/// The digest that all ranks of the mode reported; nothing if they differ or one reported none.
std::optional<std::string> common_digest(const ModeRow& mode);

/// Whether all ranks of the mode and of DDP ended with the same weights; nothing if mode "ddp" did
/// not run, or if the mode rounds what it sends.
std::optional<bool> identical_to_ddp(const LadderReport& report, const ModeRow& mode);

/// Everything that makes the run a failure, one sentence each that begins with the mode; empty if
/// all is well. Looked at: every rank reported; weights (not of a fake process group) are the same
/// on all ranks and as DDP's (unless ModeRow::rounds), and that means something (see ModeRow);
/// model states, the mean and by rank, are within kFormulaTolerance of their formula and the rest
/// is below kLargestOtherMib; losses are finite.
std::vector<std::string> verdict(const LadderReport& report);

/// Title, tables and a legend, for a terminal: the eight columns that matter most, at most 100
/// characters wide, or with `wide` everything, in two tables for 140 columns. Those are: what is
/// resident, with maxima over ranks, formula and peak; and what a step costs, with losses. A mesh
/// has a third one: what is sent by axis.
std::string to_text(const LadderReport& report, bool wide = false);

/// The report as JSON. What is derived (means, maxima, ratio, ...) is written too, for readers of
/// the file. For every value X of RankRow a mode has "X" (mean over all ranks) and "X_max", and its
/// "ranks" the values by rank. Add base::run_metadata() under a key of its own, "run".
base::Json to_json(const LadderReport& report);

/// A rank's row by itself, as the JSON library calls them for `Json(row)` and
/// `json.get<RankRow>()`.
void to_json(base::Json& json, const RankRow& rank);
void from_json(const base::Json& json, RankRow& rank);

}  // namespace zero::ladder
