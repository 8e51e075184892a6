#include "sampler.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>

#include "random.hpp"

namespace zero::data {

std::pair<std::int64_t, std::int64_t> rank_slice(std::int64_t count, int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error(fmt::format("rank {} of {}: ranks run from 0 to world size - 1", rank, world_size));
  }
  const std::int64_t each = count / world_size;
  const std::int64_t extra = count % world_size;
  const std::int64_t begin = rank * each + std::min<std::int64_t>(rank, extra);
  return {begin, begin + each + (rank < extra ? 1 : 0)};
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size, std::int64_t global_batch,
                                       int rank, int world_size, std::uint64_t seed)
    : dataset_size_(dataset_size),
      global_batch_(global_batch),
      slice_(rank_slice(std::max<std::int64_t>(global_batch, 0), rank, world_size)),
      seed_(seed) {
  if (global_batch < world_size) {
    throw Error(
        fmt::format("a global batch of {} leaves some of {} ranks without a sample; it "
                    "must be {} or more",
                    global_batch, world_size, world_size));
  }
  if (dataset_size < global_batch) {
    throw Error(
        fmt::format("the data set has {} samples, one step over all ranks takes {}: use "
                    "more data, shorter sequences or a smaller batch",
                    dataset_size, global_batch));
  }
}

std::vector<std::int64_t> DistributedSampler::global_batch() {
  if (shuffled_epoch_ != epoch()) {
    order_ = permutation(dataset_size_, generator_for(seed_, static_cast<std::uint64_t>(epoch())));
    shuffled_epoch_ = epoch();
  }
  const auto first = order_.begin() + step_ % steps_per_epoch() * global_batch_;
  return {first, first + global_batch_};
}

std::vector<std::int64_t> DistributedSampler::next() {
  const std::vector<std::int64_t> all = global_batch();
  ++step_;
  return {all.begin() + slice_.first, all.begin() + slice_.second};
}

void DistributedSampler::restore(const State& state) {
  State expected = this->state();
  expected.step = state.step;
  if (state != expected) {
    throw Error(fmt::format(
        "saved position is of seed {}, {} samples, global batch {}; this run "
        "has seed {}, {} samples, global batch {}",
        state.seed, state.dataset_size, state.global_batch, seed_, dataset_size_, global_batch_));
  }
  if (state.step < 0) {
    throw Error(fmt::format("saved position is step {}; steps count from 0", state.step));
  }
  step_ = state.step;
}

}  // namespace zero::data
