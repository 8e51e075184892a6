#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace exercise_10b {

/// A read or a write that was started.
using Handle = int;

/// A part of the shard: elements `begin` to `begin + count`.
struct Tile {
  std::int64_t begin, count;
};

/// A rank's shard. Its moments are in a file, and there are two buffers in memory, 0 and 1, each
/// for the moments of one tile. One thread reads and writes in the background: one tile after the
/// other, in the order of the calls.
class Shard {
 public:
  virtual ~Shard() = default;
  virtual std::int64_t elements() const = 0;    ///< of the shard; there may be none
  virtual std::int64_t most_count() const = 0;  ///< elements for which a buffer has room
  /// Starts to read the moments of `tile` from the file into `buffer`.
  virtual Handle start_read(int buffer, const Tile& tile) = 0;
  /// Starts to write the moments of `tile` from `buffer` into the file.
  virtual Handle start_write(int buffer, const Tile& tile) = 0;
  /// Blocks until this read or write has ended, and so all that were started before it.
  virtual void wait(Handle handle) = 0;
  /// Updates the weights of `tile` and its moments, which are in `buffer`. Takes time.
  virtual void update(int buffer, const Tile& tile) = 0;
};

/// What an answer consists of.
struct Answer {
  /// Updates all elements of the shard once.
  void (*update_shard)(Shard& shard);
};

}  // namespace exercise_10b
