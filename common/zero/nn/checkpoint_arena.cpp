#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint_arena.hpp>

namespace zero::nn {

struct CheckpointArena::Block {
  at::Tensor memory;
  std::int64_t used = 0;  // bytes
  std::int64_t live = 0;  // tensors
};

CheckpointArena::CheckpointArena(std::int64_t bytes, at::Device device)
    : block_(std::make_shared<Block>()) {
  const memory::Charge charge(memory::Category::kActivations);
  block_->memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

at::Tensor CheckpointArena::store(const at::Tensor& values) {
  constexpr std::int64_t kAlignment = 64;
  const auto needed =
      (static_cast<std::int64_t>(values.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  if (values.device() != block_->memory.device() || needed > bytes() - used()) {
    throw Error(fmt::format(
        "a checkpoint of {} bytes on {} does not fit the arena of {} bytes on {}, of which {} are "
        "used by {} others: it needs room for all checkpoints between a forward and its backward",
        needed, values.device().str(), bytes(), block_->memory.device().str(), used(),
        block_->live));
  }
  auto* const begin = block_->memory.mutable_data_ptr<std::uint8_t>() + block_->used;
  const auto release = [block = block_](void*) {
    if (--block->live == 0) block->used = 0;
  };
  at::Tensor kept =
      at::from_blob(begin, values.sizes(), release, values.options().requires_grad(false));
  block_->used += needed;
  ++block_->live;
  return kept.copy_(values);
}

std::int64_t CheckpointArena::bytes() const { return block_->memory.numel(); }

std::int64_t CheckpointArena::used() const { return block_->used; }

}  // namespace zero::nn
