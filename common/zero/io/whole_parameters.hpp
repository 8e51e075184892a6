#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <zero/train/unsharded_parameters.hpp>

namespace zero::io {

/// Who gets the whole model.
enum class WholeOn : std::uint8_t { kFirstRank, kAllRanks };

/// Brings the whole model to rank 0 or to all ranks, one parameter at a time. A rank holds at most
/// what it owns, one unit, and one parameter if the model is split over a tensor or a pipeline
/// axis.
class WholeParameters {
 public:
  /// Called by all ranks of all axes, between steps; blocks.
  WholeParameters(train::Strategy& strategy, WholeOn ranks);

  /// Parameter `g` of the whole model (train::StageOfModel::whole()) on the ranks that get it,
  /// until the next call; not defined for others. Called by all ranks, unit by unit; blocks. The
  /// traffic counts as Purpose::kParameter.
  at::Tensor collect(std::size_t g);

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void unshard(std::size_t unit);
  at::Tensor room_for(std::size_t g) const;

  train::Strategy& strategy_;
  const WholeOn ranks_;
  const train::StageOfModel& stage_;
  dist::Communicator& pipeline_;
  std::vector<std::size_t> index_;  // by parameter of the whole model: in this rank's list
  std::vector<int> owner_;          // the same: the stage that has it
  std::unique_ptr<train::UnshardedParameters> unsharded_;
  std::size_t unit_ = kNone;
};

}  // namespace zero::io
