#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <07_zero_plus_plus/zero_plus_plus.hpp>

#include "groups.hpp"
#include "toy_run.hpp"

/// What tests of chapter 07 share.
namespace zero::testing {

/// Each group is a host.
inline void on_hosts(const Shape& shape, const std::function<void(dist::Communicator&)>& body) {
  on_ranks(shape.ranks(), [&](dist::Communicator& communicator) {
    std::vector<int> hosts;
    for (int r = 0; r < shape.ranks(); ++r) hosts.push_back(r / shape.shards);
    communicator.set_hosts(hosts);
    body(communicator);
  });
}

/// Units of several sizes, made of odd numbers.
struct Odd : Toy {
  Odd() : Toy(tools::MlpConfig{.inputs = 63, .hidden = {257, 255, 251}, .outputs = 9}) {}
};

/// One rank that trains a toy under ZeRO++.
template <class Model = Odd>
struct ZeroPlusPlusRun : ToyRun<ShardedDataParallel, Model> {
  ZeroPlusPlusRun(dist::Communicator& communicator, const ZeroPlusPlusOptions& parts,
                  const ShardingOptions& options = {})
      : ToyRun<ShardedDataParallel, Model>(communicator, [&](const auto& arguments) {
          return make_zero_plus_plus(arguments, options, parts);
        }) {}

  /// What this rank sends in `work`.
  dist::Traffic sent_in(const std::function<void()>& work) const {
    const dist::Traffic before = this->communicator.traffic();
    work();
    return this->communicator.traffic().since(before);
  }
};

/// Bytes of a quantized shard of `layout`, by the formula: 4 for the scale of each block, and 8 or
/// 4 bits for each element. A parameter ends where the next one begins; the largest shard counts.
inline std::int64_t packed_bytes(const train::ShardLayout& layout, int bits,
                                 std::int64_t block = 2048) {
  std::int64_t most = 0;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const std::int64_t first = rank * layout.shard(), last = first + layout.shard();
    std::int64_t bytes = 0;
    for (std::size_t t = 0; t < layout.tensors(); ++t) {
      const std::int64_t end = t + 1 < layout.tensors() ? layout.offset(t + 1) : layout.total();
      const std::int64_t here = std::min(end, last) - std::max(layout.offset(t), first);
      if (here > 0) bytes += 4 * ((here + block - 1) / block) + here * bits / 8;
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// The sum over the buffers of `strategy`, or over all but the root's, which is gathered once a
/// step.
inline std::int64_t sum_over_buffers(
    const ShardedDataParallel& strategy,
    const std::function<std::int64_t(const train::FlatParameters&)>& of, bool with_root = true) {
  std::int64_t sum = 0;
  for (const train::FlatParameters& buffer : strategy.buckets()) {
    const std::size_t unit = strategy.list().parameters[buffer.members().front()].unit;
    if (with_root || unit != 0) sum += of(buffer);
  }
  return sum;
}

/// Bytes of this rank's shards.
inline std::int64_t shards_of(const ShardedDataParallel& strategy, bool with_root = true) {
  return sum_over_buffers(
      strategy, [](const auto& buffer) { return buffer.shard_bytes(); }, with_root);
}

/// Whether `tensor` has the same bits on all ranks. Called by all.
inline bool is_the_same_on_all_ranks(dist::Communicator& communicator, const at::Tensor& tensor) {
  const at::Tensor mine = tensor.contiguous().flatten();
  const at::Tensor all = at::empty({communicator.size() * mine.numel()}, mine.options());
  communicator.all_gather(all, mine, dist::Purpose::kControl).wait();
  return at::equal(all, mine.repeat({communicator.size()}));
}

/// Bytes to ranks of the same host.
inline std::int64_t inside_hosts(const dist::Traffic& sent, dist::Purpose purpose) {
  return sent.bytes(purpose) - sent.between_hosts(purpose);
}

}  // namespace zero::testing
