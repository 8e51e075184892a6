#pragma once

#include <cstdint>

#include <zero/train/flat/parameter_transfer.hpp>

namespace zero {

/// The collective of stage 3, for other transfers to build on: every rank sends its shard to every
/// other.
class AllGather final : public train::ParameterTransfer {
 public:
  /// `ranks_outside`: how many ranks of `ranks` are outside of this rank's group. `ranks` must
  /// outlive this object.
  AllGather(dist::Communicator& ranks, std::int64_t shard_bytes, int ranks_outside)
      : ranks_(ranks), shard_bytes_(shard_bytes), ranks_outside_(ranks_outside) {}

  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override {
    return ranks_.all_gather(full, shard, dist::Purpose::kParameter);
  }
  train::SentBytes sent(std::int64_t gathers) const override {
    return {gathers * (ranks_.size() - 1) * shard_bytes_, gathers * ranks_outside_ * shard_bytes_};
  }

 private:
  dist::Communicator& ranks_;
  std::int64_t shard_bytes_;
  int ranks_outside_;
};

}  // namespace zero
