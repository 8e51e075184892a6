#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace zero::data {

/// The part [begin, end) of `count` items that rank `rank` takes: contiguous and in rank order. If
/// the world size does not divide `count`, the first count mod world_size ranks take one more.
/// @throws zero::Error for a rank outside the world.
std::pair<std::int64_t, std::int64_t> rank_slice(std::int64_t count, int rank, int world_size);

/// Which samples each rank sees at each step: seeded, and the same for every world size.
///
/// Epoch e is the permutation of 0 to dataset_size - 1 of generator_for(seed, e) (random.hpp). Step
/// t of the run is step t mod steps_per_epoch() of epoch t / steps_per_epoch(), and its global
/// batch is the next `global_batch` samples of the permutation. A rank takes its rank_slice() of
/// it. So the concatenation over ranks, in rank order, is the global batch at every world size, and
/// a run may be continued on another number of ranks.
///
/// An epoch ends with its last full global batch: up to global_batch - 1 samples at the end of the
/// permutation are left out (often called drop_last), different ones in every epoch.
///
/// Each rank has its own object; nothing is communicated.
class DistributedSampler {
 public:
  /// The state for a checkpoint. It does not include the rank and the world size.
  struct State {
    std::uint64_t seed = 0;
    std::int64_t dataset_size = 0;
    std::int64_t global_batch = 0;
    std::int64_t step = 0;  ///< steps taken since the start of the run
    bool operator==(const State&) const = default;
  };

  /// @param dataset_size number of samples, at least global_batch
  /// @param global_batch samples of one step over all ranks, at least world_size
  /// @param rank of this process
  /// @param world_size ranks in all
  /// @param seed of the permutations
  /// @throws zero::Error if these do not hold or `rank` is outside the world.
  DistributedSampler(std::int64_t dataset_size, std::int64_t global_batch, int rank, int world_size,
                     std::uint64_t seed);

  /// Sample indices of this rank for the current step, never empty; then advances by one step.
  std::vector<std::int64_t> next();

  /// Sample indices of all ranks for the current step, in rank order. Does not advance.
  std::vector<std::int64_t> global_batch();

  std::int64_t steps_per_epoch() const { return dataset_size_ / global_batch_; }
  std::int64_t step() const { return step_; }
  std::int64_t epoch() const { return step_ / steps_per_epoch(); }

  State state() const { return {seed_, dataset_size_, global_batch_, step_}; }

  /// Continues from `state`, with this object's rank and world size.
  /// @throws zero::Error if seed, dataset size or global batch differ from this object's: the run
  ///   would continue with other batches.
  void restore(const State& state);

 private:
  std::int64_t dataset_size_;
  std::int64_t global_batch_;
  std::pair<std::int64_t, std::int64_t> slice_;
  std::uint64_t seed_;
  std::int64_t step_ = 0;
  std::int64_t shuffled_epoch_ = -1;  // the epoch whose permutation order_ holds
  std::vector<std::int64_t> order_;
};

}  // namespace zero::data
