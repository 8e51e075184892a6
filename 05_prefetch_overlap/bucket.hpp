#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/shard_layout.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// What is sharded of a bucket between steps.
enum class Sharded : std::uint8_t {
  kNothing,     ///< stage 0: parameters, gradients and optimizer states are whole
  kOptimizer,   ///< stage 1: the optimizer's states are sharded
  kGradients,   ///< stage 2: gradients as well
  kParameters,  ///< stage 3: parameters as well
};

/// Some parameters of one unit that travel together: neighbours in one flat buffer, their gradients
/// in another. The difference to chapter 04's group is time: whatever sends is a start and a
/// finish, so that something else can happen in between.
///
///     start_gather()  …  finish_gather()        the shards of all ranks, into the buffer
///     start_reduce()  …  finish_reduce()        the average of all ranks' gradients
///
/// At stage 3 a parameter that lies in this rank's shard from end to end shows its bytes there
/// while the bucket is whole: it is not gathered, and not copied but by NCCL, into a place that
/// nobody reads. The others are windows of the buffer.
///
/// Memory, with F the bytes of the padded buffer: as the stage says, and F of gradients more from
/// the first gradient to finish_reduce(), F of parameters more from start_gather() to reshard().
class Bucket {
 public:
  /// `members`: indices into `list.parameters`, all of one unit, one dtype, and all trainable or
  /// all frozen. `pool`: where large buffers come from; it must outlive the bucket.
  /// `keeps_gradients`: the bytes of what the rank keeps of gradients stay from step to step,
  /// unless somebody else still holds them; not for averages that are added up.
  Bucket(const nn::ParameterList& list, std::vector<std::size_t> members, Sharded sharded,
         bool keeps_gradients, dist::Communicator& communicator, dist::Reduction average,
         memory::StoragePool& pool);

  const std::vector<std::size_t>& members() const { return members_; }
  const train::ShardLayout& layout() const { return layout_; }
  bool trainable() const { return trainable_; }
  Sharded sharded() const { return sharded_; }
  std::int64_t bytes() const;  ///< of its parameters, without padding
  std::int64_t shard_bytes() const;
  std::int64_t full_bytes() const { return shard_bytes() * layout_.world_size(); }

  /// Gives the buffer its bytes, zeros, and makes the parameters windows of it. Their own bytes, if
  /// they had any, are given up: read them before.
  void allocate();
  const at::Tensor& full() const { return full_; }  ///< [N * shard]
  at::Tensor parameter(std::size_t m) const;        ///< member `m` in its own shape
  /// After the first values have come: from now on only the shard stays, where that is all that the
  /// rank keeps.
  void keep_shard_only();

  /// Asks for the shards of all ranks; nothing to do where the buffer is whole or on its way.
  void start_gather();
  /// The same after an update, for a buffer that is there but holds old values of the others.
  void start_refresh();
  /// Blocks until the parameters may be read. Other ranks may still read this rank's shard: nobody
  /// waits for them here, or each would be as slow as the slowest, unit by unit.
  void finish_gather();
  /// Blocks until the buffer may be written, or given up.
  void wait_gather();
  /// Drops the buffer again, where only the shard is kept.
  void reshard();
  bool whole() const { return whole_; }

  train::ParameterShard piece(std::size_t m) const { return pieces_[m]; }
  train::ParameterShard local_shard(std::size_t m) const;

  /// Where the gradient of member `m` is to be written: a window of the gradient buffer.
  at::Tensor gradient_window(std::size_t m);
  /// Brings the gradient that backward left in `.grad` of member `m` into its window.
  void collect(std::size_t m);
  /// Sends the gradient buffer off to be averaged; members without a gradient count as zeros. It
  /// may not be touched until finish_reduce(). `whole`: keep the whole buffer (stages 0 and 1).
  void start_reduce(bool whole);
  /// Blocks until the pieces' `.grad` are averages, and gives up what the rank does not keep.
  void finish_reduce();
  void drop_gradients();

 private:
  const at::Tensor& tensor(std::size_t m) const { return list_.parameters[members_[m]].tensor; }
  at::Tensor window(const at::Tensor& buffer, std::size_t m) const;
  at::Tensor my_part(const at::Tensor& buffer) const;
  bool split() const { return sharded_ == Sharded::kParameters; }
  bool lies_in_shard(std::size_t m) const;
  void show_own_members();
  void hide_own_members();
  void copy_own_part(std::size_t m);
  void gather_into_buffer();
  void fill_gaps();
  void make_shard_views();
  at::Tensor gradient_shard_buffer();
  void assign_gradient_views(const at::Tensor& gradient_shard);
  void drop_full_gradient();

  const nn::ParameterList& list_;
  std::vector<std::size_t> members_;
  std::string read_too_early_;  // what a read of a parameter that is not whole says
  Sharded sharded_;
  bool keeps_gradients_;
  dist::Communicator* communicator_;
  dist::Reduction average_;  // of gradients
  memory::StoragePool* pool_;
  train::ShardLayout layout_;
  bool trainable_;
  bool whole_ = false;
  at::Tensor full_;
  at::Tensor shard_;
  at::Tensor full_gradient_;
  at::Tensor gradient_shard_;
  at::Tensor kept_shard_;  // its bytes, for the next step
  bool keep_full_gradient_ = false;
  bool gathers_ = false;
  bool reduces_ = false;
  dist::Work gathering_;
  dist::Work reducing_;
  std::vector<train::ParameterShard> pieces_;
};

}  // namespace zero
