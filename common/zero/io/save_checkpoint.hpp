#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <zero/optim/optimizer.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// The state of a run besides parameters and optimizer states. The same on all ranks.
struct CheckpointInfo {
  std::int64_t step = 0;  ///< optimizer steps so far, at least 0
  std::string mode;       ///< the strategy, for messages
  /// The position in the data: numbers by names of the caller's own.
  std::optional<std::map<std::string, std::uint64_t>> sampler;
  std::string random;  ///< state of the caller's generators, in UTF-8, as the caller reads it back
  std::map<std::string, std::string> notes;  ///< what else the caller wants to find again, in UTF-8

  /// Filled by load_checkpoint(): the number of ranks that saved, and their optimizer's settings
  /// then. These are not restored: the optimizer keeps the settings that it was made with.
  int world_size = 0;
  optim::Optimizer::Settings optimizer;
};

/// Writes a checkpoint to `folder`, which keeps the last `keep`: older ones are removed when the
/// new one is complete. Called by all ranks, between steps (after sync_parameters()), with the same
/// arguments, on a folder that all of them see; blocks until it is on the disk. Nothing is
/// gathered: each rank writes its own part, and needs safetensors::kScratchBytes. The ranks of a
/// model that is split over a tensor or a pipeline axis are those of all axes; the checkpoint is
/// that of the whole model.
///
/// @throws zero::Error on every rank, with the reason of one of them, if the folder cannot be
/// written to or is full, it holds a checkpoint.json of something else, this process has saved
/// another model to it that still lives, `info` or `keep` differs between ranks, `keep` is below 1,
/// a weight is infinite or NaN, the optimizer's state cannot be saved, or ranks differ in how often
/// a parameter was updated. The earlier checkpoints then stay whole.
void save_checkpoint(train::Strategy& strategy, const std::filesystem::path& folder,
                     const CheckpointInfo& info, int keep = 1);

/// A checkpoint that is written while training goes on. It has the bytes that save_checkpoint()
/// would write when it is made. One may be pending for a folder. Until finish() has renamed
/// checkpoint.json, the checkpoint before is the one that loads.
class PendingCheckpoint {
 public:
  /// Copies what this rank writes to the host's memory, and begins to write the copy on a thread.
  /// Called by all ranks, as save_checkpoint(), and throws as that does, except what happens while
  /// files are written. Blocks for the copy.
  PendingCheckpoint(train::Strategy& strategy, const std::filesystem::path& folder,
                    const CheckpointInfo& info, int keep = 1);
  /// Waits for this rank's thread. Without finish() there is no checkpoint, which a line on stderr
  /// says; the next save removes its files. If the program ends first (exit(), quick_exit(), or an
  /// object that is never destroyed), the end waits likewise, and the exit code is not 0.
  ~PendingCheckpoint();
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;

  /// Whether finish() need not wait: the threads of all ranks have ended, or one has failed. Called
  /// by all ranks, which exchange a number.
  bool is_written();
  /// Waits for the threads, writes checkpoint.json, and removes older checkpoints. Called once, by
  /// all ranks. @throws zero::Error as save_checkpoint(), also for what happened on a thread.
  void finish();

 private:
  struct State;
  dist::Communicator& ranks_;
  std::unique_ptr<State> state_;
  std::thread thread_;  // uses the state
};

}  // namespace zero::io
