#include <ATen/ops/empty.h>

#include <utility>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/flat/flat_gradients.hpp>

namespace zero::train {

using memory::Category;
using memory::Charge;

namespace {

// If the caller has kept a gradient, its bytes must not be written again.
bool is_held_elsewhere(const at::Tensor& buffer) { return buffer.storage().use_count() > 1; }

}  // namespace

FlatGradients::FlatGradients(const FlatParameters& parameters, dist::Communicator& communicator,
                             memory::StoragePool& pool)
    : parameters_(&parameters), pool_(&pool) {
  if (!parameters.trainable()) return;
  const bool whole = options().sharded == Sharded::kNothing || options().all_reduces;
  const Transfers& transfers = options().transfers;
  if (!whole && transfers.gradients) transfer_ = transfers.gradients(parameters.buffer());
  if (transfer_) return;
  const dist::Reduction& average = options().average;
  transfer_ = std::make_unique<Average>(
      communicator, whole ? Average::Of::kAll : Average::Of::kShard, average,
      layout().shard() * communicator.reduced_element_size(parameters.dtype(), average.type),
      transfers.ranks_outside);
}

bool FlatGradients::keeps_whole() const {
  return options().sharded == Sharded::kNothing ||
         (options().sharded == Sharded::kOptimizer && !options().adds_averages);
}

std::int64_t FlatGradients::bytes() const {
  if (!parameters_->trainable()) return 0;
  if (keeps_whole()) return parameters_->full_bytes();
  // A rank keeps no shard that is nothing but padding.
  return parameters_->updates_any() ? parameters_->shard_bytes() : 0;
}

at::Tensor FlatGradients::view(std::size_t m) {
  if (!whole_.defined()) {
    whole_ = memory::without_storage({layout().total()}, parameters_->dtype(), member(m).device());
    pool_->allocate(whole_, Category::kGradients);
    zero_padding();
  }
  return parameters_->view_of(whole_, m);
}

// Padding is sent with the rest; zeros, so that no sum is computed from old bytes.
void FlatGradients::zero_padding() {
  const auto zero = [this](std::int64_t begin, std::int64_t end) {
    if (begin < end) whole_.narrow(0, begin, end - begin).zero_();
  };
  std::int64_t end = 0;
  for (std::size_t m = 0; m < parameters_->size(); ++m) {
    zero(end, layout().offset(m));
    end = layout().offset(m) + layout().size(m);
  }
  zero(end, layout().total());
}

void FlatGradients::collect(std::size_t m) {
  at::Tensor& gradient = member(m).mutable_grad();
  if (!gradient.defined()) return;
  // The layers of zero/nn have written it there already; ordinary autograd has not.
  if (whole_.defined() && gradient.is_alias_of(whole_) &&
      gradient.storage_offset() == layout().offset(m)) {
    return;
  }
  at::Tensor place = view(m);
  place.copy_(gradient);
  gradient = place;
}

void FlatGradients::start_reduce() {
  for (std::size_t m = 0; m < parameters_->size(); ++m) {
    collect(m);
    if (!member(m).grad().defined()) view(m).zero_();
  }
  is_reducing_ = true;
  const bool in_place = keeps_whole() || options().all_reduces;
  shard_ = in_place ? parameters_->shard_of(whole_) : shard_buffer();
  reducing_ = transfer_->reduce(whole_, shard_);
}

at::Tensor FlatGradients::shard_buffer() {
  if (reused_shard_.defined() && !is_held_elsewhere(reused_shard_)) return reused_shard_;
  const Charge charge(Category::kGradients);
  at::Tensor buffer = at::empty({layout().shard()}, whole_.options());
  if (options().keeps_gradients && parameters_->updates_any()) reused_shard_ = buffer;
  return buffer;
}

void FlatGradients::finish_reduce() {
  if (!is_reducing_) return;
  reducing_.wait();
  is_reducing_ = false;
  at::Tensor shard = std::exchange(shard_, at::Tensor());
  if (options().sharded == Sharded::kNothing) {
    for (std::size_t m = 0; m < parameters_->size(); ++m) {
      member(m).mutable_grad() = parameters_->view_of(whole_, m);
    }
    // The averages remain as views. The next micro-batch gets a buffer of its own.
    if (options().adds_averages) whole_.reset();
    return;
  }
  if (!keeps_whole()) {
    if (options().all_reduces) {
      const Charge charge(Category::kGradients);
      shard = shard.clone();
    }
    drop_whole();
  }
  for (std::size_t m = 0; m < parameters_->size(); ++m) {
    // The optimizer holds these tensors since shard_optimizer().
    if (updated(m).defined()) {
      updated(m).mutable_grad() = parameters_->part_of(shard, m);
    }
  }
  if (transfer_->has_rest()) rest_ = transfer_->reduce_rest(shard);
}

void FlatGradients::drop_whole() {
  for (std::size_t m = 0; m < parameters_->size(); ++m) member(m).mutable_grad().reset();
  if (whole_.defined()) pool_->release(whole_);
  whole_.reset();
}

void FlatGradients::drop() {
  finish_reduce();
  finish_rest();
  for (std::size_t m = 0; m < parameters_->size(); ++m) {
    member(m).mutable_grad().reset();
    if (updated(m).defined()) updated(m).mutable_grad().reset();
  }
  const auto drop = [this](at::Tensor& buffer, bool is_average) {
    const bool keeps = is_average && options().keeps_gradients;
    if (buffer.defined() && (!keeps || is_held_elsewhere(buffer))) buffer.reset();
  };
  drop(whole_, keeps_whole() && !options().adds_averages);
  drop(reused_shard_, true);
}

}  // namespace zero::train
