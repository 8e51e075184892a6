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
#include <zero/train/flat/gradient_transfer.hpp>
#include <zero/train/flat/parameter_transfer.hpp>
#include <zero/train/flat/shard_layout.hpp>
#include <zero/train/parameter_shard.hpp>
#include <zero/train/parameter_writes.hpp>

namespace zero::train {

/// Which model states are sharded between steps.
enum class Sharded : std::uint8_t {
  kNothing,     ///< stage 0: parameters, gradients and optimizer states are whole
  kOptimizer,   ///< stage 1: the optimizer's states are sharded
  kGradients,   ///< stage 2: gradients as well
  kParameters,  ///< stage 3: parameters as well
};

/// What a transfer (below) must know of the buffer that it serves. Only `pool` outlives the call.
struct FlatBuffer {
  const ShardLayout& layout;
  at::TensorOptions options;  ///< dtype and device
  const std::string& name;    ///< of the first member, for errors
  memory::StoragePool& pool;  ///< where scratch gets its bytes
};

/// How chapter 07 sends in another way than by an all-gather and a reduce-scatter over all ranks. A
/// function may be empty or return null: the collective is used then. Chapters 04 and 05 have none.
struct Transfers {
  /// For each buffer whose parameters are sharded.
  std::function<std::unique_ptr<ParameterTransfer>(const FlatBuffer&)> parameters = {};
  /// For each trainable buffer whose gradients are sharded.
  std::function<std::unique_ptr<GradientTransfer>(const FlatBuffer&)> gradients = {};
  /// Of all other ranks, how many are outside of this rank's group; 0 without groups.
  int ranks_outside = 0;
};

struct FlatOptions {
  Sharded sharded = Sharded::kNothing;
  /// Of gradients over the ranks. With ReduceOp::kSum another reduction follows, of what
  /// finish_reduce() returns (chapter 06).
  dist::Reduction average = {};
  /// At stage 1: average gradients by an all-reduce, although only the shard is used.
  bool all_reduces = false;
  /// Averages of several micro-batches are added up, so that an average must leave the gradient
  /// buffer before the next micro-batch writes into it.
  bool adds_averages = false;
  /// The bytes of averaged gradients stay allocated from step to step.
  bool keeps_gradients = false;
  Transfers transfers = {};
};

/// What a reduction leaves on this rank; undefined tensors at stage 0.
struct ReducedShard {
  at::Tensor gradients;  ///< [shard]: the `.grad` of the pieces are views of it
  /// If another reduction follows and 2-byte gradients are added in float32: the sum [shard],
  /// not yet rounded; `gradients` is filled later. Otherwise the same tensor as `gradients`.
  at::Tensor sum;
  /// If not null, `gradients` are filled by its reduce_rest().
  GradientTransfer* rest = nullptr;
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
///     start_reduce()   …  finish_reduce()     the average of all ranks' gradients
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
/// are whole, it uses its bytes in the shard.
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
  /// storage, with those that `first_value` writes on rank 0. If there are groups of ranks that
  /// hold copies, `replicas` connects the ranks with the same shard, and rank 0 is that of the
  /// first group. Called by all ranks; blocks.
  void initialize(const FirstValue& first_value, dist::Communicator* replicas = nullptr);

  /// Starts to gather the shards of all ranks. Does nothing if the parameters are whole or being
  /// gathered.
  void start_gather();
  /// The same for parameters that are whole at rest (stages 1 and 2): gathers what other ranks have
  /// updated since.
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
  /// What the program has written into the members since the last forget_writes(), by the version
  /// counters of the parameters. `in_scope`: such a scope lives; else new writes are refused.
  const ParameterWrites& writes(bool in_scope);
  void forget_writes();

  /// The part of member `m` that this rank updates; undefined if there is none.
  ParameterShard piece(std::size_t m) const { return pieces_[m]; }
  /// All of these parts.
  std::vector<at::Tensor> updated() const;
  /// The part of member `m` that this rank keeps between steps, whether it updates it or not.
  ParameterShard local_shard(std::size_t m) const;

  /// The place of member `m`'s gradient in the gradient buffer, which the first call allocates.
  at::Tensor gradient_view(std::size_t m);
  /// Copies the gradient of member `m` to its place, unless it was written there.
  void collect(std::size_t m);
  /// Starts to average the gradient buffer. A member without a gradient counts as zeros, because
  /// other ranks may have one. Do not touch the buffer until finish_reduce().
  void start_reduce();
  /// Blocks until the averages are the `.grad` of the pieces; returns what they are views of. Does
  /// nothing if no reduction is in flight.
  ReducedShard finish_reduce();
  /// Waits for a reduction in flight, and drops all gradients.
  void drop_gradients();

 private:
  enum class Parameters : std::uint8_t { kSharded, kGathering, kWhole };
  enum class Gradients : std::uint8_t { kNone, kReducing };

  const at::Tensor& tensor(std::size_t m) const { return list_.parameters[members_[m]].tensor; }
  at::Tensor view_of(const at::Tensor& buffer, std::size_t m) const;
  at::Tensor my_shard_of(const at::Tensor& buffer) const;
  ShardLayout::Range my_range(std::size_t m) const {
    return layout_.range(m, communicator_->rank());
  }
  at::Tensor mine_of_full(std::size_t m) const;
  at::Tensor mine_of_shard(const at::Tensor& shard, std::size_t m) const;
  std::int64_t reduced_shard_bytes() const;
  bool rounds() const { return parameter_transfer_ && parameter_transfer_->rounds(); }
  bool uses_shard(std::size_t m) const;
  void keep_shard_only();
  void make_pieces();
  void show_own_members();
  void hide_own_members();
  void gather_into_buffer();
  void note_writes(bool in_scope);
  void note_versions();
  void keep_shard_of_buffer();
  void zero_padding();
  at::Tensor gradient_shard_buffer();
  at::Tensor sum_buffer() const;
  void drop_full_gradient();

  const nn::ParameterList& list_;
  std::vector<std::size_t> members_;
  FlatOptions options_;
  dist::Communicator* communicator_;
  memory::StoragePool* pool_;
  ShardLayout layout_;
  std::unique_ptr<ParameterTransfer> parameter_transfer_;  // null: an all-gather
  std::unique_ptr<GradientTransfer> gradient_transfer_;    // null: a reduce-scatter
  bool trainable_;
  std::string read_too_early_;          // the error of a read while the parameters are sharded
  std::vector<ParameterShard> pieces_;  // by member

  Parameters parameters_ = Parameters::kSharded;
  at::Tensor full_;   // [N * shard]
  at::Tensor shard_;  // [shard], a view of full_ unless parameters are sharded
  // By member: if all of it lies in the shard, a tensor over its storage, whatever the program does
  // to the parameter (set_data()).
  std::vector<at::Tensor> own_members_;
  dist::Work gathering_;
  bool rounded_ = false;                // the values in full_ are
  std::vector<std::int64_t> versions_;  // by member: its version counter, as far as it is noted
  ParameterWrites writes_;

  Gradients gradients_ = Gradients::kNone;
  at::Tensor full_gradient_;   // [N * shard]
  at::Tensor gradient_shard_;  // [shard]: where the average goes
  at::Tensor sum_;             // [shard]: the same, or a sum in float32
  at::Tensor kept_shard_;      // kept for the next step
  dist::Work reducing_;
};

}  // namespace zero::train
