#include "sharded_group.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero {

using dist::Purpose;
using memory::Category;
using memory::Charge;

namespace {

train::ShardLayout layout_of(const nn::ParameterList& list, const std::vector<std::size_t>& members,
                             int world_size) {
  std::vector<std::int64_t> sizes;
  for (const std::size_t i : members) sizes.push_back(list.parameters[i].numel());
  return {std::move(sizes), world_size};
}

}  // namespace

ShardedGroup::ShardedGroup(const nn::ParameterList& list, std::vector<std::size_t> members,
                           dist::Communicator& communicator, dist::Reduction average)
    : list_(list),
      members_(std::move(members)),
      communicator_(communicator),
      average_(average),
      layout_(layout_of(list, members_, communicator.size())),
      trainable_(tensor(0).requires_grad()) {}

std::int64_t ShardedGroup::shard_bytes() const {
  return layout_.shard() * static_cast<std::int64_t>(tensor(0).element_size());
}

void ShardedGroup::allocate() {
  const Charge charge(Category::kParameters);
  full_ = at::zeros({layout_.total()}, tensor(0).options().requires_grad(false));
  shard_ = full_.narrow(0, communicator_.rank() * layout_.shard(), layout_.shard());
  for (std::size_t m = 0; m < members_.size(); ++m) {
    memory::place(tensor(m), full_, layout_.offset(m));
  }
  whole_ = true;
  assign_gradient_views(at::Tensor());
}

at::Tensor ShardedGroup::window(const at::Tensor& buffer, std::size_t m) const {
  return buffer.narrow(0, layout_.offset(m), layout_.size(m)).view(tensor(m).sizes());
}

at::Tensor ShardedGroup::parameter(std::size_t m) const { return window(full_, m); }

void ShardedGroup::split() {
  const Charge charge(Category::kParameters);
  shard_ = shard_.clone();
  split_ = true;
  // The pieces were windows of the buffer, whose bytes go now.
  assign_gradient_views(at::Tensor());
  reshard();
}

void ShardedGroup::gather() {
  if (whole_) return;
  const Charge charge(Category::kParameters);
  memory::allocate_storage(full_);
  communicator_.all_gather(full_, shard_, Purpose::kParameter).wait();
  whole_ = true;
}

void ShardedGroup::reshard() {
  if (!split_ || !whole_) return;
  // The windows keep their shapes and their place in the storage object, which comes back in place:
  // what autograd saved of them is valid again after the next gather.
  memory::release_storage(full_, train::unsharded_read(list_, members_));
  whole_ = false;
}

void ShardedGroup::assign_gradient_views(const at::Tensor& gradient_shard) {
  // A frozen parameter is sharded like the others, but nobody updates it.
  if (!trainable_) {
    pieces_.assign(members_.size(), {});
    return;
  }
  if (!gradient_shard.defined()) pieces_.clear();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const auto segment = layout_.range(m, communicator_.rank());
    if (!gradient_shard.defined()) {
      pieces_.push_back(segment.size == 0
                            ? train::ParameterShard{}
                            : train::ParameterShard{
                                  shard_.narrow(0, segment.in_shard, segment.size), segment.begin});
    } else if (segment.size > 0) {
      pieces_[m].tensor.mutable_grad() = gradient_shard.narrow(0, segment.in_shard, segment.size);
    }
  }
}

train::ParameterShard ShardedGroup::local_shard(std::size_t m) const {
  if (!split_) return {parameter(m), 0};
  const auto segment = layout_.range(m, communicator_.rank());
  if (segment.size == 0) return {};
  return {shard_.narrow(0, segment.in_shard, segment.size), segment.begin};
}

at::Tensor ShardedGroup::gradient_window(std::size_t m) {
  if (!full_gradient_.defined()) {
    const Charge charge(Category::kGradients);
    full_gradient_ = at::empty({layout_.total()}, full_.options());
    fill_gaps();
  }
  return window(full_gradient_, m);
}

void ShardedGroup::fill_gaps() {
  // Padding travels with the rest. Zeros, so that nobody ever computes with garbage.
  std::int64_t end = 0;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    full_gradient_.narrow(0, end, layout_.offset(m) - end).zero_();
    end = layout_.offset(m) + layout_.size(m);
  }
  full_gradient_.narrow(0, end, layout_.total() - end).zero_();
}

void ShardedGroup::collect(std::size_t m) {
  at::Tensor& gradient = tensor(m).mutable_grad();
  if (!gradient.defined()) return;
  // Layers of common/zero/nn wrote it into its window already; ordinary autograd made a tensor.
  at::Tensor there = gradient_window(m);
  if (gradient.data_ptr() == there.data_ptr()) return;
  there.copy_(gradient);
  gradient = there;
}

void ShardedGroup::collect_all() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    collect(m);
    // This rank's batch did not use it; its window holds whatever the allocator left there.
    if (!tensor(m).grad().defined()) gradient_window(m).zero_();
  }
}

void ShardedGroup::drop_full_gradient() {
  // Every `.grad` is a window of the buffer and would keep it alive.
  for (std::size_t m = 0; m < members_.size(); ++m) tensor(m).mutable_grad().reset();
  full_gradient_.reset();
}

void ShardedGroup::reduce_scatter(bool keep_full) {
  collect_all();
  const std::int64_t n = layout_.shard();
  // Communicator::reduce_scatter() allows this: the result in the place of this rank's own piece.
  at::Tensor mine = full_gradient_.narrow(0, communicator_.rank() * n, n);
  if (!keep_full) {
    const Charge charge(Category::kGradients);
    mine = at::empty({n}, full_.options());
  }
  communicator_.reduce_scatter(mine, full_gradient_, Purpose::kGradient, average_).wait();
  if (!keep_full) drop_full_gradient();
  assign_gradient_views(mine);
}

void ShardedGroup::all_reduce(bool keep_full) {
  collect_all();
  communicator_.all_reduce(full_gradient_, Purpose::kGradient, average_).wait();
  const std::int64_t n = layout_.shard();
  at::Tensor mine = full_gradient_.narrow(0, communicator_.rank() * n, n);
  if (!keep_full) {
    const Charge charge(Category::kGradients);
    mine = mine.clone();
    drop_full_gradient();
  }
  assign_gradient_views(mine);
}

void ShardedGroup::drop_gradients() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    tensor(m).mutable_grad().reset();
    if (pieces_[m].tensor.defined()) pieces_[m].tensor.mutable_grad().reset();
  }
  full_gradient_.reset();
}

}  // namespace zero
