#pragma once

#include <cstdint>
#include <memory>

#include <zero/memory/storage_pool.hpp>
#include <zero/train/flat/transfers.hpp>

#include "shard_blocks.hpp"

namespace zero {

/// qwZ, quantized weights (ZeRO++, Wang et al. 2023): parameters travel as int8, with a scale for
/// each block.
///
///     shard (float) --quantize--> packed shard --another transfer--> all packed shards
///                                              --dequantize--> parameters (float)
///
/// Every rank dequantizes all shards, its own too, so that all ranks compute with the same bits.
/// The shard itself, which the optimizer updates, is never rounded, so that updates smaller than a
/// block's scale add up. If the other transfer keeps a secondary shard, that has packed bytes, a
/// quarter of those of float32, and later gathers bring the same bits as the first.
class QuantizedParameters final : public train::ParameterTransfer {
 public:
  /// `bytes`: gathers packed shards (uint8, blocks.packed_bytes() each). `rank`: this rank.
  /// `pool`: where the packed bytes of all ranks lie during a gather; it must outlive this object.
  QuantizedParameters(std::unique_ptr<train::ParameterTransfer> bytes, ShardBlocks blocks, int rank,
                      memory::StoragePool& pool)
      : bytes_(std::move(bytes)), blocks_(std::move(blocks)), rank_(rank), pool_(pool) {}

  /// Beside `full` there are the packed shards of all ranks until wait_output(), and if the gather
  /// reads the shard, a packed shard until wait() (memory::Category::kCommunication).
  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override;
  bool reads_shard() const override { return bytes_->reads_shard(); }
  bool rounds() const override { return true; }
  void written(const at::Tensor& full) override;
  std::int64_t held_bytes() const override { return bytes_->held_bytes(); }
  train::SentBytes sent(std::int64_t gathers) const override { return bytes_->sent(gathers); }

 private:
  void unpack(const at::Tensor& packed, const at::Tensor& full) const;

  std::unique_ptr<train::ParameterTransfer> bytes_;
  ShardBlocks blocks_;
  int rank_;
  memory::StoragePool& pool_;
};

}  // namespace zero
