#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tools/support/json.hpp>

/// The report of a run: what --json writes, and what the tables, the pictures and the verdict are
/// made from. Nothing here communicates or touches a tensor.
///
/// It says what ran (report_head() in options.cpp), and has a row for each of "modes":
///   "mode"         as on the command line: "ddp", "zero1:naive"
///   X, X_max       mean and maximum over the ranks of each figure X below
///   "ratio"        mean total over DDP's; null if ddp did not run
///   "formula_difference"                 (mean total - formula) / formula
///   "sent_bytes_per_rank", "sent_in_v"   all purposes on the data axis, with their maxima
///   "losses", "loss_first", "loss_last"  of the steps, means over ranks
///   "rounds"       what is sent is rounded, or the host updates for a GPU, so that the weights are
///                  close to DDP's and not equal
///   "every_tensor_changed", "batches_differed", "gradients_differed"
///                  equal weights prove something only if all three hold: no trainable tensor kept
///                  its first value, no two ranks of a data axis saw the same batch, and none had
///                  the same gradients before the reduction
///   "identical_to_ddp"                   whether all ranks of both ended with the same weights;
///                  null if ddp did not run, the mode rounds, or the ranks are fake
///   "digest"       that all ranks have; null if they differ
///   "ranks"        a row for each rank: "rank", "digest" and the figures X
///
/// A digest is the SHA-256 over the bytes of every tensor of the whole model after the last step,
/// as this rank and those that share the model with it hold them; empty on a fake rank. Figures, in
/// MiB (2^20 bytes), bytes or seconds of wall-clock:
///   parameter_mib, gradient_mib, optimizer_mib, other_mib
///                  resident after the optimizer step and sync_parameters, before gradients are
///                  cleared, by category of the allocator; other: since before the model was built
///   total_mib      the allocator's live bytes minus those before the model was built: measured,
///   not
///                  the sum of the above
///   formula_mib    what the formula predicts of model states
///   peak_mib       the highest live bytes within a step, minus those before the model was built
///   peak_states_mib                      of parameters, gradients and optimizer states together
///   resident_growth_mib                  of the process's resident set over the run
///   high_water_mib                       its largest from the start to the end of training
///   sent_gradient_bytes, sent_parameter_bytes, sent_control_bytes
///                  by a rank in a step: on the data axis, but control in all; sent_bytes: the sum
///   sent_data_bytes, sent_pipeline_bytes, sent_tensor_bytes
///                  along each axis of the mesh, without control messages
///   formula_data_bytes, formula_pipeline_bytes
///                  what the formulas predict of these
///   sent_between_hosts_bytes             of everything, what went to ranks on other hosts
///   step_seconds, forward_seconds, backward_seconds, communication_seconds, optimizer_seconds
///                  medians; communication is the time spent waiting for collectives, which the
///                  other phases exclude
///   in_flight_seconds                    something was started and not yet waited for to the end
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

/// The row of a mode, without what derive() adds, from what run_rank() brought back from each rank.
/// `cell`: ranks of the tensor and pipeline axes, which share their batches.
tools::Json mode_row(const std::string& mode, bool rounds, const tools::Json& results, int cell);

/// Adds to the modes what follows from their ranks, or replaces it.
void derive(tools::Json& report);

/// Everything that makes the run a failure, one sentence each that begins with the mode; empty if
/// all is well. Looked at: weights (not of a fake process group) are the same on all ranks and as
/// DDP's (unless the mode rounds), and that means something; model states, the mean and by rank,
/// are within kFormulaTolerance of their formula and the rest is below kLargestOtherMib; not one
/// byte more or less was sent than the formulas say; losses are finite.
std::vector<std::string> verdict(const tools::Json& report);

/// Title, tables and a legend, for a terminal: the eight columns that matter most, at most 100
/// characters wide, or with `wide` everything, in two tables for 140 columns. Those are: what is
/// resident, with maxima over ranks, formula and peak; and what a step costs, with losses. A mesh
/// has a third one: what is sent by axis.
std::string to_text(const tools::Json& report, bool wide = false);

/// Whether not all ranks are on the data axis.
bool has_mesh(const tools::Json& report);
/// "8 ranks (data 2 x pipeline 2 x tensor 2)", "rank 7 of 512 in a fake process group".
std::string ranks_text(const tools::Json& report);
/// What a rank has in a step: "2 micro-batches of 1 x 128 tokens a rank", "1 x 128 tokens a rank".
std::string batch_text(const tools::Json& report);

/// The number under `key`; not a number if it is null.
double number_in(const tools::Json& row, const std::string& key);

}  // namespace zero::ladder
