#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <zero/optim/optimizer.hpp>

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

}  // namespace zero::io
