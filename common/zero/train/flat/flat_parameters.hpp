#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/flat/shard_layout.hpp>
#include <zero/train/flat/transfers.hpp>
#include <zero/train/parameter_writes.hpp>
#include <zero/train/placement.hpp>

namespace zero::train {

/// Which model states are sharded between steps.
enum class Sharded : std::uint8_t {
  kNothing,     ///< stage 0: parameters, gradients and optimizer states are whole
  kOptimizer,   ///< stage 1: the optimizer's states are sharded
  kGradients,   ///< stage 2: gradients as well
  kParameters,  ///< stage 3: parameters as well
};

struct FlatOptions {
  Sharded sharded = Sharded::kNothing;
  /// How gradients are averaged over the ranks.
  dist::Reduction average = {};
  /// At stage 1: average gradients by an all-reduce, although only the shard is used.
  bool all_reduces = false;
  /// Averages of several micro-batches are added up, so that an average must leave the gradient
  /// buffer before the next micro-batch writes into it.
  bool adds_averages = false;
  /// The bytes of averaged gradients stay allocated from step to step.
  bool keeps_gradients = false;
  Transfers transfers = {};
  std::function<std::int64_t()> version = {};  ///< see FlatBuffer
};

/// Some parameters of one unit that are sharded and sent together. They are views of one flat
/// buffer, and their gradients are views of another, so that a collective takes a buffer as it is,
/// without copies into it or out of it. ShardLayout says where each parameter lies and how the
/// buffers are cut into a shard for each rank.
///
///     initialize()                            once: the values of rank 0
///     start_gather()   …  finish_gather()     the shards of all ranks become whole parameters
///     reshard()                               this rank's shard stays, the rest is freed
///     gradient_view(), collect()              while backward makes the gradients
///     start_reduce()   …  finish_reduce()     the average of all ranks' gradients,
///                         finish_rest()       if something had to follow
///     start_refresh()  …  finish_gather()     after the update: what other ranks have updated
///
/// Each transfer has a start and a finish, so that the caller can compute in between. All ranks
/// call the start functions in the same order; the finish functions block.
///
/// Memory, with F the bytes of the padded buffer and N ranks: parameters take F; at stage 3 only
/// from start_gather() to reshard(), and F/N otherwise. Gradients take F from the first gradient to
/// drop_gradients(); at stages 2 and 3 only to finish_reduce(), which leaves F/N.
///
/// At stage 3, a parameter that lies entirely in this rank's shard is not copied: while the others
/// are whole, it uses its bytes in the shard, if that rests in memory (ParameterTransfer::takes()).
class FlatParameters {
 public:
  /// `members`: indices into `list.parameters`, all of one unit, one dtype, and all trainable or
  /// all frozen. `pool`: where the buffers get their bytes. `list`, `communicator` and `pool` must
  /// outlive this object.
  FlatParameters(const nn::ParameterList& list, std::vector<std::size_t> members,
                 const FlatOptions& options, dist::Communicator& communicator,
                 memory::StoragePool& pool);

  const std::vector<std::size_t>& members() const { return members_; }
  const ShardLayout& layout() const { return layout_; }
  /// Whether the members required gradients when they were flattened.
  bool trainable() const { return trainable_; }
  /// Whether this rank keeps its shard of the parameters only.
  bool shards_parameters() const { return options_.sharded == Sharded::kParameters; }
  /// Whether the whole gradient buffer stays after a reduction.
  bool keeps_whole_gradient() const;
  /// Whether this rank updates any element of the members.
  bool updates_any() const { return !updated().empty(); }
  at::ScalarType dtype() const { return tensor(0).scalar_type(); }
  std::int64_t bytes() const;  ///< of the parameters, without padding
  std::int64_t shard_bytes() const;
  std::int64_t full_bytes() const { return shard_bytes() * layout_.world_size(); }
  /// Bytes of parameters that this rank holds at rest.
  std::int64_t parameter_bytes() const;
  /// What this rank sends in a step of one micro-batch in which sharded parameters are gathered
  /// `gathers` times.
  SentBytes sent(std::int64_t gathers) const;

  /// Writes the first value of parameter `index` of the list into a tensor of its shape.
  using FirstValue = std::function<void(std::size_t index, at::Tensor out)>;
  /// Makes the parameters views of the buffer, with rank 0's values; for parameters without
  /// storage, with those that `first_value` writes on rank 0, which is that of the first group if
  /// there are groups (Transfers::replicas). Called by all ranks; blocks.
  void initialize(const FirstValue& first_value);

  /// Starts to gather the shards of all ranks. Does nothing if the parameters are whole or being
  /// gathered.
  void start_gather();
  /// Call after the update. Parameters that are whole at rest (stages 1 and 2): the same, gathers
  /// what other ranks have updated since.
  void start_refresh();
  /// The same for reading outside of a pass: starts and finishes. Parameters that are gathered
  /// rounded otherwise (ParameterTransfer::rounds()) are gathered again, as they are.
  void gather_exactly();
  /// Blocks until the parameters may be read. Other ranks may still be reading this rank's shard.
  void finish_gather();
  /// Blocks until no other rank reads this rank's shard, so that it may be written.
  void wait_gather();
  /// Frees what this rank does not keep of the parameters. Until the next gather, reading one is an
  /// error that names it.
  void reshard();
  bool is_whole() const { return parameters_ == Parameters::kWhole; }
  /// The buffer, [N * shard]. Read it only while the parameters are whole.
  const at::Tensor& full() const { return full_; }

  /// Call at the end of a scope in which the program may write into the members
  /// (Strategy::unshard()) and nobody reads this rank's shard. If they are whole, this rank keeps
  /// its shard of the written values.
  void keep_writes();
  /// Notes and returns what the program has written into the members since the last
  /// forget_writes(), by the version counters of the parameters. `in_scope`: such a scope lives;
  /// else new writes are refused.
  const ParameterWrites& collect_writes(bool in_scope);
  void forget_writes();

  /// What this rank has of member `m`, from initialize() on.
  Placement placement(std::size_t m) const;
  /// Call before the bytes of what this rank keeps are read or written, until something else is
  /// brought, gathered or updated: they may rest elsewhere (ParameterTransfer::takes()).
  void bring() { parameter_transfer_->bring(shard_); }
  /// What it updates, of all members.
  std::vector<at::Tensor> updated() const;

  /// The place of member `m`'s gradient in the gradient buffer, which the first call allocates.
  at::Tensor gradient_view(std::size_t m);
  /// Copies the gradient of member `m` to its place, unless it was written there.
  void collect(std::size_t m);
  /// Starts to average the gradient buffer. A member without a gradient counts as zeros, because
  /// other ranks may have one. Do not touch the buffer until finish_reduce().
  void start_reduce();
  /// Blocks until `.grad` of what this rank updates is where the averages go, and starts what must
  /// follow (GradientTransfer::reduce_rest()). Does nothing if no reduction is in flight.
  void finish_reduce();
  /// Blocks until what finish_reduce() has started is done.
  void finish_rest() { rest_.wait(); }
  /// Whether the averages are there after finish_reduce().
  bool averages_at_once() const { return !gradient_transfer_->has_rest(); }
  /// Waits for a reduction in flight, and drops all gradients.
  void drop_gradients();

 private:
  enum class Parameters : std::uint8_t { kSharded, kGathering, kWhole };

  const at::Tensor& tensor(std::size_t m) const { return list_.parameters[members_[m]].tensor; }
  at::Tensor view_of(const at::Tensor& buffer, std::size_t m) const;
  at::Tensor my_shard_of(const at::Tensor& buffer) const;
  ShardLayout::Range my_range(std::size_t m) const {
    return layout_.range(m, communicator_->rank());
  }
  at::Tensor mine_of_full(std::size_t m) const;
  at::Tensor mine_of_shard(const at::Tensor& shard, std::size_t m) const;
  ParameterShard share(std::size_t m) const;
  void make_transfers();
  void start(ParameterTransfer& transfer);
  std::unique_ptr<AllGather> all_gather() const;
  bool rounds() const { return parameter_transfer_->rounds(); }
  bool uses_shard(std::size_t m) const;
  void keep_shard_only();
  void choose_updated();
  void show_own_members();
  void hide_own_members();
  void note_writes(bool in_scope);
  void note_versions();
  void keep_shard_of_buffer();
  void zero_padding();
  at::Tensor gradient_shard_buffer();
  void drop_full_gradient();

  const nn::ParameterList& list_;
  std::vector<std::size_t> members_;
  FlatOptions options_;
  dist::Communicator* communicator_;
  memory::StoragePool* pool_;
  ShardLayout layout_;
  std::unique_ptr<ParameterTransfer> parameter_transfer_;
  std::unique_ptr<GradientTransfer> gradient_transfer_;
  bool trainable_;
  std::string read_too_early_;           // the error of a read while the parameters are sharded
  std::vector<ParameterShard> updated_;  // by member

  Parameters parameters_ = Parameters::kSharded;
  at::Tensor full_;   // [N * shard]
  at::Tensor shard_;  // [shard], a view of full_ unless parameters are sharded
  // By member: if all of it lies in the shard, a tensor over its storage, whatever the program does
  // to the parameter (set_data()).
  std::vector<at::Tensor> own_members_;
  dist::Work gathering_;
  bool rests_elsewhere_ = false;        // the shard: the transfer takes and brings its bytes
  bool rounded_ = false;                // the values in full_ are
  std::vector<std::int64_t> versions_;  // by member: its version counter, as far as it is noted
  ParameterWrites writes_;

  bool is_reducing_ = false;
  at::Tensor full_gradient_;   // [N * shard]
  at::Tensor gradient_shard_;  // [shard]: where the average goes, by finish_rest()
  at::Tensor kept_shard_;      // kept for the next step
  dist::Work reducing_;
  dist::Work rest_;
};

}  // namespace zero::train
