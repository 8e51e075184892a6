#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/shard_layout.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// A group: parameters of one unit that are sharded as one flat buffer. All of them (flat layout;
/// those of another dtype and frozen ones make a group of their own) or one (per-parameter layout).
/// Their tensors are windows of the buffer, so that a collective moves the buffer and nothing is
/// copied in or out; their gradients are windows of another one.
///
/// Memory, with B the bytes of this group's padded buffer and N ranks:
///   whole:    B for parameters; the shard is a window of it (stages 1 and 2)
///   split:    B/N for the shard, and B more between gather() and reshard() (stage 3)
///   gradients: B from the first gradient_window() until drop_gradients(), or until a reduction
///              with keep_full = false, which leaves B/N
///
/// A step calls, in this order: gather() and reshard() around forward and around backward (stage 3
/// only), gradient_window() and collect() for each member inside backward, reduce_scatter(), and
/// after the update TensorSharding::gather_updated() (stages 1 and 2 only).
class ShardedGroup {
 public:
  /// `members`: indices into `list.parameters`, all of one dtype and all trainable or all frozen.
  ShardedGroup(const nn::ParameterList& list, std::vector<std::size_t> members,
               dist::Communicator& communicator, dist::Reduction average);

  const std::vector<std::size_t>& members() const { return members_; }
  const train::ShardLayout& layout() const { return layout_; }
  bool trainable() const { return trainable_; }
  std::int64_t shard_bytes() const;
  std::int64_t full_bytes() const { return shard_bytes() * layout_.world_size(); }

  /// Gives the buffer its bytes, zeros, and makes the parameters windows of it. Their own bytes, if
  /// they had any, are given up: read them before.
  void allocate();
  /// The parameter of member `m`, in its own shape.
  at::Tensor parameter(std::size_t m) const;
  const at::Tensor& full() const { return full_; }    ///< [N * shard]
  const at::Tensor& shard() const { return shard_; }  ///< [shard]

  /// From now on only the shard has bytes of its own (stage 3). `allocate()` must have been called.
  void split();
  /// All ranks' shards into the buffer, on all ranks; nothing to do where it is whole. Called by
  /// all ranks; blocks.
  void gather();
  /// Drops the buffer's bytes again. Does nothing before split(): the buffer is the only copy then.
  void reshard();
  bool whole() const { return whole_; }

  /// This rank's part of member `m`, as the optimizer knows it; undefined where there is none.
  train::ParameterShard piece(std::size_t m) const { return pieces_[m]; }

  /// What rests here of member `m`, frozen or not: all of it unless split() was called.
  train::ParameterShard local_shard(std::size_t m) const;

  /// Where the gradient of member `m` is to be written: a window of the gradient buffer, which is
  /// made when first asked for.
  at::Tensor gradient_window(std::size_t m);
  /// Brings the gradient that backward left in `.grad` of member `m` into its window.
  void collect(std::size_t m);
  /// Averages the gradient buffer over the ranks; afterwards the pieces' `.grad` are windows of
  /// this rank's shard. Members without a gradient count as zeros, because other ranks may have
  /// one. `keep_full`: the shard stays where it is in the buffer; otherwise it gets bytes of its
  /// own and the buffer is freed. Called by all ranks; blocks.
  void reduce_scatter(bool keep_full);
  /// The same result by an all-reduce of the whole buffer.
  void all_reduce(bool keep_full);
  void drop_gradients();

 private:
  const at::Tensor& tensor(std::size_t m) const { return list_.parameters[members_[m]].tensor; }
  at::Tensor window(const at::Tensor& buffer, std::size_t m) const;
  void fill_gaps();
  void collect_all();
  void drop_full_gradient();
  /// Where `gradient_shard` is undefined: makes the pieces, windows of the shard as it lies now.
  /// Else gives the pieces windows of it as their `.grad`.
  void assign_gradient_views(const at::Tensor& gradient_shard);

  const nn::ParameterList& list_;
  std::vector<std::size_t> members_;
  dist::Communicator& communicator_;
  dist::Reduction average_;  // of gradients
  train::ShardLayout layout_;
  bool trainable_;
  bool split_ = false;        // the shard has bytes of its own
  bool whole_ = false;        // the buffer has its bytes
  at::Tensor full_;           // [N * shard], parameters
  at::Tensor shard_;          // [shard], a window of full_ until split()
  at::Tensor full_gradient_;  // [N * shard], undefined where there are no gradients
  std::vector<train::ParameterShard> pieces_;  // by member
};

}  // namespace zero
