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
#include <zero/train/flat/flat_options.hpp>
#include <zero/train/flat/shard_layout.hpp>
#include <zero/train/parameter_writes.hpp>
#include <zero/train/placement.hpp>

namespace zero::train {

/// Some parameters of one unit that are sharded and sent together, its members. They are views of
/// one flat buffer, so that a collective takes it as it is, without copies into it or out of it.
/// ShardLayout says where each member lies, and how the buffer is cut into a shard for each rank. A
/// member's *part* is what this rank's shard has of it. FlatGradients has the gradients.
///
///     initialize()                            once: the values of rank 0
///     start_gather()   …  finish_gather()     the shards of all ranks become whole parameters
///     reshard()                               this rank's shard stays, the rest is freed
///     start_refresh()  …  finish_gather()     after the update: what other ranks have updated
///
/// The caller can compute between start and finish. All ranks call the start functions in the same
/// order; the finish functions block.
///
/// Memory, with F the bytes of the padded buffer and N ranks: F; at stage 3 only from
/// start_gather() to reshard(), and F/N otherwise.
///
/// At stage 3, a member that lies entirely in this rank's shard is not copied: while the others are
/// whole, it uses its bytes in the shard, if that rests in memory (ParameterTransfer::takes()).
class FlatParameters {
 public:
  /// `members`: indices into `list.parameters`, all of one unit, one dtype, and all trainable or
  /// all frozen. `pool`: where the buffers get their bytes. `list`, `communicator` and `pool` must
  /// outlive this object.
  FlatParameters(const nn::ParameterList& list, std::vector<std::size_t> members,
                 const FlatOptions& options, dist::Communicator& communicator,
                 memory::StoragePool& pool);

  const std::vector<std::size_t>& members() const { return members_; }
  std::size_t size() const { return members_.size(); }  ///< how many members
  const at::Tensor& member(std::size_t m) const { return list_.parameters[members_[m]].tensor; }
  const ShardLayout& layout() const { return layout_; }
  const FlatOptions& options() const { return options_; }
  /// What its transfers are told.
  FlatBuffer buffer() const;
  /// Whether the members required gradients when they were flattened.
  bool trainable() const { return trainable_; }
  /// Whether this rank keeps its shard of the parameters only.
  bool shards_parameters() const { return options_.sharded == Sharded::kParameters; }
  /// Whether this rank updates any element of the members.
  bool updates_any() const { return !updated().empty(); }
  at::ScalarType dtype() const { return member(0).scalar_type(); }
  std::int64_t bytes() const;  ///< of the parameters, without padding
  std::int64_t shard_bytes() const;
  std::int64_t full_bytes() const { return shard_bytes() * layout_.world_size(); }
  /// Bytes of parameters that this rank holds at rest.
  std::int64_t parameter_bytes() const;
  /// What this rank sends in a step of one micro-batch in which sharded parameters are gathered
  /// `gathers` times, without gradients.
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
  void bring() { transfer_->bring(shard_); }
  /// What it updates of member `m`, undefined if nothing, and of all members.
  const at::Tensor& updated(std::size_t m) const { return updated_[m].tensor; }
  std::vector<at::Tensor> updated() const;

  // In a buffer of this layout, as a view of it.

  /// Member `m`, of its shape, in a buffer [N * shard].
  at::Tensor view_of(const at::Tensor& buffer, std::size_t m) const;
  /// This rank's shard of a buffer [N * shard].
  at::Tensor shard_of(const at::Tensor& buffer) const;
  /// The part of member `m` in a shard [shard].
  at::Tensor part_of(const at::Tensor& shard, std::size_t m) const;

 private:
  enum class Parameters : std::uint8_t { kSharded, kGathering, kWhole };

  ShardLayout::Range range(std::size_t m) const { return layout_.range(m, communicator_->rank()); }
  at::Tensor part_of_full(std::size_t m) const { return part_of(shard_of(full_), m); }
  ParameterShard part(std::size_t m) const;
  void start(ParameterTransfer& transfer);
  std::unique_ptr<AllGather> all_gather() const;
  bool rounds() const { return transfer_->rounds(); }
  bool uses_shard(std::size_t m) const;
  void keep_shard_only();
  void choose_updated();
  void show_in_shard();
  void hide_in_shard();
  void note_writes(bool in_scope);
  void note_versions();
  void keep_shard_of_buffer();

  const nn::ParameterList& list_;
  std::vector<std::size_t> members_;
  FlatOptions options_;
  dist::Communicator* communicator_;
  memory::StoragePool* pool_;
  ShardLayout layout_;
  std::unique_ptr<ParameterTransfer> transfer_;
  bool trainable_;
  std::string read_too_early_;           // the error of a read while the parameters are sharded
  std::vector<ParameterShard> updated_;  // by member

  Parameters parameters_ = Parameters::kSharded;
  at::Tensor full_;   // [N * shard]
  at::Tensor shard_;  // [shard], a view of full_ unless parameters are sharded
  // By member: if all of it lies in the shard, a tensor over its storage, whatever the program does
  // to the parameter (set_data()).
  std::vector<at::Tensor> in_shard_;
  dist::Work gathering_;
  bool rests_elsewhere_ = false;        // the shard: the transfer takes and brings its bytes
  bool rounded_ = false;                // the values in full_ are
  std::vector<std::int64_t> versions_;  // by member: its version counter, as far as it is noted
  ParameterWrites writes_;
};

}  // namespace zero::train
