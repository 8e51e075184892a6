#include "bucket.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
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

// A caller may have kept a gradient: it is not ours to write into then.
bool is_held_elsewhere(const at::Tensor& buffer) { return buffer.storage().use_count() > 1; }

}  // namespace

Bucket::Bucket(const nn::ParameterList& list, std::vector<std::size_t> members, Sharded sharded,
               bool keeps_gradients, dist::Communicator& communicator, dist::Reduction average,
               memory::StoragePool& pool)
    : list_(list),
      members_(std::move(members)),
      read_too_early_(train::unsharded_read(list, members_)),
      sharded_(sharded),
      keeps_gradients_(keeps_gradients),
      communicator_(&communicator),
      average_(average),
      pool_(&pool),
      layout_(layout_of(list, members_, communicator.size())),
      trainable_(tensor(0).requires_grad()) {}

std::int64_t Bucket::bytes() const {
  std::int64_t sum = 0;
  for (const std::size_t i : members_) sum += list_.parameters[i].bytes();
  return sum;
}

std::int64_t Bucket::shard_bytes() const {
  return layout_.shard() * static_cast<std::int64_t>(tensor(0).element_size());
}

void Bucket::allocate() {
  const Charge charge(Category::kParameters);
  full_ = at::zeros({layout_.total()}, tensor(0).options().requires_grad(false));
  shard_ = my_part(full_);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    memory::place(tensor(m), full_, layout_.offset(m));
  }
  whole_ = true;
}

bool Bucket::lies_in_shard(std::size_t m) const {
  return layout_.range(m, communicator_->rank()).size == layout_.size(m);
}

void Bucket::keep_shard_only() {
  if (split()) {
    const Charge charge(Category::kParameters);
    shard_ = shard_.clone();
    // Not into the pool: the next bucket is of another size, more often than not.
    memory::release_storage(full_, read_too_early_);
    whole_ = false;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      if (lies_in_shard(m)) memory::separate_storage(tensor(m));
    }
    hide_own_members();
  }
  make_shard_views();
}

// The optimizer updates the shard at any time; through the model its bytes are seen only while
// those of the other ranks are, so that a read in the wrong place is an error on all ranks.
void Bucket::show_own_members() {
  for (std::size_t m = 0; split() && m < members_.size(); ++m) {
    if (!lies_in_shard(m)) continue;
    const auto mine = layout_.range(m, communicator_->rank());
    memory::borrow_storage(tensor(m), shard_.narrow(0, mine.in_shard, mine.size));
  }
}

void Bucket::hide_own_members() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!lies_in_shard(m)) continue;
    memory::release_storage(tensor(m), train::unsharded_read(list_, {members_[m]}));
  }
}

at::Tensor Bucket::my_part(const at::Tensor& buffer) const {
  return buffer.narrow(0, communicator_->rank() * layout_.shard(), layout_.shard());
}

at::Tensor Bucket::window(const at::Tensor& buffer, std::size_t m) const {
  return buffer.narrow(0, layout_.offset(m), layout_.size(m)).view(tensor(m).sizes());
}

at::Tensor Bucket::parameter(std::size_t m) const { return memory::raw(tensor(m)); }

void Bucket::start_gather() {
  if (whole_ || gathers_) return;
  if (layout_.world_size() == 1) {
    whole_ = true;  // the shard is everything
    show_own_members();
    return;
  }
  pool_->allocate(full_, Category::kParameters);
  gather_into_buffer();
}

void Bucket::start_refresh() {
  wait_gather();  // of the last one
  if (!split() && sharded_ != Sharded::kNothing && trainable_) gather_into_buffer();
}

void Bucket::gather_into_buffer() {
  for (std::size_t m = 0; split() && m < members_.size(); ++m) copy_own_part(m);
  // A flag, not the handle: with one rank the handle is empty at once.
  gathers_ = true;
  gathering_ =
      communicator_->all_gather(full_, shard_, Purpose::kParameter, /*copy_own_chunk=*/false);
}

// The part that this rank keeps of a parameter which lies in several shards.
void Bucket::copy_own_part(std::size_t m) {
  const auto mine = layout_.range(m, communicator_->rank());
  if (mine.size == 0 || lies_in_shard(m)) return;
  full_.narrow(0, layout_.offset(m) + mine.begin, mine.size)
      .copy_(shard_.narrow(0, mine.in_shard, mine.size));
}

void Bucket::finish_gather() {
  if (!gathers_) return;
  gathering_.wait_output();
  gathers_ = false;
  whole_ = true;
  show_own_members();
}

void Bucket::wait_gather() {
  finish_gather();
  gathering_.wait();
}

void Bucket::reshard() {
  wait_gather();  // by now the others have what they wanted, as a rule
  if (!split() || !whole_) return;
  // The storage object stays and gets bytes again in place: what autograd saved of it is valid
  // then.
  pool_->release(full_, read_too_early_);
  hide_own_members();
  whole_ = false;
}

void Bucket::make_shard_views() {
  pieces_.assign(members_.size(), {});
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (sharded_ == Sharded::kNothing) {
      pieces_[m] = {tensor(m), 0};
      continue;
    }
    const auto mine = layout_.range(m, communicator_->rank());
    // A frozen parameter is sharded like the others, but nobody updates it.
    if (!trainable_ || mine.size == 0) continue;
    pieces_[m] = {shard_.narrow(0, mine.in_shard, mine.size), mine.begin};
  }
}

train::ParameterShard Bucket::local_shard(std::size_t m) const {
  if (!split()) return {parameter(m), 0};
  const auto mine = layout_.range(m, communicator_->rank());
  if (mine.size == 0) return {};
  return {shard_.narrow(0, mine.in_shard, mine.size), mine.begin};
}

at::Tensor Bucket::gradient_window(std::size_t m) {
  if (!full_gradient_.defined()) {
    full_gradient_ =
        memory::without_storage({layout_.total()}, full_.scalar_type(), full_.device());
    pool_->allocate(full_gradient_, Category::kGradients);
    fill_gaps();
  }
  return window(full_gradient_, m);
}

void Bucket::fill_gaps() {
  // Padding travels with the rest. Zeros, so that nobody ever computes with garbage.
  std::int64_t end = 0;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    full_gradient_.narrow(0, end, layout_.offset(m) - end).zero_();
    end = layout_.offset(m) + layout_.size(m);
  }
  full_gradient_.narrow(0, end, layout_.total() - end).zero_();
}

void Bucket::collect(std::size_t m) {
  at::Tensor& gradient = tensor(m).mutable_grad();
  if (!gradient.defined()) return;
  // Layers of common/zero/nn wrote it into its window already; ordinary autograd made a tensor.
  at::Tensor there = gradient_window(m);
  if (gradient.data_ptr() == there.data_ptr()) return;
  there.copy_(gradient);
  gradient = there;
}

void Bucket::start_reduce(bool whole) {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    collect(m);
    if (!tensor(m).grad().defined()) gradient_window(m).zero_();
  }
  reduces_ = true;
  keep_full_gradient_ = whole;
  if (sharded_ == Sharded::kNothing) {
    reducing_ = communicator_->all_reduce(full_gradient_, Purpose::kGradient, average_);
    return;
  }
  gradient_shard_ = my_part(full_gradient_);
  if (!whole) gradient_shard_ = gradient_shard_buffer();
  reducing_ =
      communicator_->reduce_scatter(gradient_shard_, full_gradient_, Purpose::kGradient, average_);
}

at::Tensor Bucket::gradient_shard_buffer() {
  if (kept_shard_.defined() && !is_held_elsewhere(kept_shard_)) return kept_shard_;
  const Charge charge(Category::kGradients);
  at::Tensor room = at::empty({layout_.shard()}, full_.options());
  const bool holds_any = std::any_of(pieces_.begin(), pieces_.end(),
                                     [](const auto& piece) { return piece.tensor.defined(); });
  if (keeps_gradients_ && holds_any) kept_shard_ = room;
  return room;
}

void Bucket::finish_reduce() {
  if (!reduces_) return;
  reducing_.wait();
  reduces_ = false;
  if (sharded_ == Sharded::kNothing) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      tensor(m).mutable_grad() = window(full_gradient_, m);
    }
    // Averages of micro-batches that are added up live on as windows; the next backward gets a
    // buffer of its own.
    if (!keep_full_gradient_) full_gradient_.reset();
    return;
  }
  if (!keep_full_gradient_) drop_full_gradient();
  assign_gradient_views(std::exchange(gradient_shard_, at::Tensor()));
}

void Bucket::assign_gradient_views(const at::Tensor& gradient_shard) {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const auto mine = layout_.range(m, communicator_->rank());
    if (mine.size == 0) continue;
    pieces_[m].tensor.mutable_grad() = gradient_shard.narrow(0, mine.in_shard, mine.size);
  }
}

void Bucket::drop_full_gradient() {
  for (std::size_t m = 0; m < members_.size(); ++m) tensor(m).mutable_grad().reset();
  if (full_gradient_.defined()) pool_->release(full_gradient_);
  full_gradient_.reset();
}

void Bucket::drop_gradients() {
  finish_reduce();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    tensor(m).mutable_grad().reset();
    if (pieces_[m].tensor.defined()) pieces_[m].tensor.mutable_grad().reset();
  }
  const auto give_up = [this](at::Tensor& buffer, bool keeps) {
    if (buffer.defined() && (!keeps || is_held_elsewhere(buffer))) buffer.reset();
  };
  give_up(full_gradient_, keeps_gradients_ && keep_full_gradient_);
  give_up(kept_shard_, keeps_gradients_);
}

}  // namespace zero
