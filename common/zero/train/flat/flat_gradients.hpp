#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/work.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/train/flat/flat_parameters.hpp>
#include <zero/train/flat/transfers.hpp>

namespace zero::train {

/// The gradients of the members of a FlatParameters: views of a flat buffer with the same layout.
///
///     view(), collect()     while backward makes them
///     start_reduce()        the average of all ranks' gradients
///      …  finish_reduce()
///         finish_rest()     if something had to follow
///     drop()
///
/// The caller can compute in between. All ranks call start_reduce() in the same order.
///
/// Memory, with F the bytes of the padded buffer and N ranks: F from the first gradient to drop();
/// at stages 2 and 3, and where averages are added up, only to finish_reduce(), which leaves F/N.
class FlatGradients {
 public:
  /// What is passed by reference must outlive this object.
  FlatGradients(const FlatParameters& parameters, dist::Communicator& communicator,
                memory::StoragePool& pool);

  const FlatParameters& parameters() const { return *parameters_; }
  /// Bytes that this rank holds at rest: after the update, before drop(). 0 if the members are
  /// frozen.
  std::int64_t bytes() const;
  /// What this rank sends in a reduction.
  SentBytes sent() const { return transfer_ ? transfer_->sent() : SentBytes{}; }

  /// The place of member `m`'s gradient in the buffer, which the first call allocates.
  at::Tensor view(std::size_t m);
  /// Copies the gradient of member `m` to its place, unless it was written there.
  void collect(std::size_t m);
  /// Starts to average the buffer. A member without a gradient counts as zeros, because other ranks
  /// may have one. Do not touch the buffer until finish_reduce().
  void start_reduce();
  /// Blocks until `.grad` of what this rank updates is where the averages go, and starts what must
  /// follow (GradientTransfer::reduce_rest()). Does nothing if no reduction is in flight.
  void finish_reduce();
  /// Blocks until what finish_reduce() has started is done.
  void finish_rest() { rest_.wait(); }
  /// Whether the averages are there after finish_reduce().
  bool averages_at_once() const { return !transfer_->has_rest(); }
  /// Waits for a reduction in flight, and drops all gradients.
  void drop();

 private:
  const FlatOptions& options() const { return parameters_->options(); }
  const ShardLayout& layout() const { return parameters_->layout(); }
  const at::Tensor& member(std::size_t m) const { return parameters_->member(m); }
  const at::Tensor& updated(std::size_t m) const { return parameters_->updated(m); }
  bool keeps_whole() const;
  void zero_padding();
  at::Tensor shard_buffer();
  void drop_whole();

  const FlatParameters* parameters_;
  memory::StoragePool* pool_;
  std::unique_ptr<GradientTransfer> transfer_;  // null if the members are frozen

  bool is_reducing_ = false;
  at::Tensor whole_;         // [N * shard]
  at::Tensor shard_;         // [shard]: where the average goes, until finish_reduce() hands it on
  at::Tensor reused_shard_;  // kept for the next step
  dist::Work reducing_;
  dist::Work rest_;
};

}  // namespace zero::train
