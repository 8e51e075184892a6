#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

/// Bytes of what is only at times in the memory that computes (10_offload/host.md). Tests compare
/// them with what runs count.
namespace zero::plan {

/// Of a unit whose parameters a rank keeps in a file (train::ShardFile).
struct UnitInFile {
  std::int64_t file = 0;      ///< bytes of the rank's shards, rounded up to 4 KiB
  std::int64_t gathered = 0;  ///< of the whole unit beside them; one rank needs none
  bool is_updated = true;     ///< false: frozen
};

/// Bytes that a rank moves in a step: reads m (2 S - R) + S, writes S.
struct FileTraffic {
  std::int64_t in_passes = 0;  ///< m (2 S - R), read
  std::int64_t in_update = 0;  ///< S of what is updated: read, and as many written
};
/// `units`: the root (R) first. It stays whole from forward to backward, in each of m
/// micro-batches.
FileTraffic file_traffic(const std::vector<UnitInFile>& units, std::int64_t micro_batches);

/// The most that is in memory of these units at one time in a step. In a pass: the root, a unit
/// that runs and `lookahead` more with their shards, and the shard that is read ahead; in the
/// update: three shards. Each shard has 4 KiB for its alignment.
std::int64_t parameters_in_memory(const std::vector<UnitInFile>& units, std::int64_t lookahead);

/// Where the inputs of checkpointed layers are if they leave the device (nn::KeptOnHost), in bytes.
struct InputsOnHost {
  std::int64_t device = 0, host = 0;
  std::int64_t bus = 0;  ///< both ways, in a micro-batch
};
/// Of `layers` layers, `input` bytes each: all go out, and all but the last come back.
constexpr InputsOnHost inputs_on_host(std::int64_t layers, std::int64_t input) {
  return {std::min<std::int64_t>(layers, 2) * input, layers * input, (2 * layers - 1) * input};
}

}  // namespace zero::plan
