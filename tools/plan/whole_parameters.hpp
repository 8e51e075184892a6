#pragma once

#include <cstdint>
#include <vector>

#include <zero/train/ownership.hpp>

#include "model.hpp"
#include "states.hpp"

/// Shares where a tensor cannot be cut (chapters 01 to 03), and where it is cut along its rows only
/// (PyTorch's FSDP2).
namespace zero::plan {

/// Elements that each rank owns.
std::vector<std::int64_t> owned_elements(const std::vector<TensorSize>& tensors, int world_size,
                                         train::Ownership ownership);

/// The largest share over the mean share: 1 where all are equal.
double largest_over_mean(const std::vector<TensorSize>& tensors, int world_size,
                         train::Ownership ownership);

/// Model states of the rank that owns most. Bytes.
States largest_states(const std::vector<TensorSize>& tensors, const Policy& policy, Stage stage,
                      int world_size, train::Ownership ownership);

/// Elements of a rank where the rows of every tensor are divided by the world size and padded to
/// equal parts: the sum of ceil(rows/N) x elements/rows. FSDP2 shards its parameters so
/// (torch.distributed.fsdp.fully_shard, "sharded on dim-0").
std::int64_t elements_sharded_by_rows(const std::vector<TensorSize>& tensors, int world_size);

}  // namespace zero::plan
