#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/base/kept_error.hpp>
#include <zero/train/backward/backward_schedule.hpp>
#include <zero/train/flat/flat_parameters.hpp>
#include <zero/train/flat/shard_file.hpp>

namespace zero::train {

/// All parameters of a model in flat buffers, unit by unit, the root's first. A buffer holds
/// parameters of one unit and one dtype, either trainable or frozen ones.
class FlatParameterList {
 public:
  using OptionsOfUnit = std::function<FlatOptions(std::size_t unit)>;

  /// `buffer_bytes`: the most that one buffer holds; a larger parameter has a buffer of its own.
  /// 0: every parameter has its own. What is passed by reference must outlive this object.
  FlatParameterList(const nn::ParameterList& list, std::int64_t buffer_bytes,
                    const OptionsOfUnit& options, dist::Communicator& communicator,
                    memory::StoragePool& pool);
  /// Waits for what is in flight; an error is said once, and not while another is on its way.
  ~FlatParameterList();
  FlatParameterList(const FlatParameterList&) = delete;
  FlatParameterList& operator=(const FlatParameterList&) = delete;

  /// Call before initialize(): the shards of units whose parameters are sharded will lie in files.
  /// `ranks`: those that gather the same units; they tell each other in each gather whether a disk
  /// failed. The parameters must be on the CPU.
  void offload(const optim::OffloadOptions& options, dist::Communicator& ranks);
  bool is_offloaded() const { return !files_.empty(); }
  /// What this rank has moved so far to the files and from them.
  optim::OffloadTraffic traffic() const;

  /// See FlatParameters::initialize(). From then on the layers of zero/nn write gradients into the
  /// gradient buffers. Called by all ranks; blocks.
  void initialize(const FlatParameters::FirstValue& first_value,
                  dist::Communicator* replicas = nullptr);

  std::size_t size() const { return buffers_.size(); }
  FlatParameters& operator[](std::size_t b) { return buffers_[b]; }
  const std::vector<FlatParameters>& buffers() const { return buffers_; }
  /// For BackwardSchedule: item k is buffer k. A frozen buffer has no parameters there and is never
  /// reduced.
  std::vector<BackwardSchedule::Item> items() const;

  /// See FlatParameters, for parameter `index` of the list.
  ParameterShard piece(std::size_t index) const;
  ParameterShard local_shard(std::size_t index) const;
  /// Throws zero::Error for a parameter that was frozen when it was flattened.
  void collect(std::size_t index);

  // For the buffers of a unit, or for all.
  /// If the unit's shards are in a file: starts to read them.
  void read_ahead(std::size_t unit);
  void start_gather(std::size_t unit);
  /// @throws zero::Error on all ranks if the disk of one failed.
  void finish_gather(std::size_t unit);
  void gather_exactly(std::size_t unit);
  void keep_writes(std::size_t unit);
  void reshard(std::size_t unit);
  /// Starts to gather what the ranks have updated, in all buffers.
  void start_refresh();
  /// Blocks until no gather is in flight.
  void wait_gathers();
  /// See FlatParameters::writes().
  ParameterWrites writes();
  void forget_writes();
  void drop_gradients();

  /// Calls `step`, an optimizer's, which updates the pieces that have a gradient: with shards in
  /// files once for those in memory, and once for each unit in a file, while the next one is read
  /// and the one before is written. @throws zero::Error if the disk fails. Then some shards are
  /// updated and some are not, until each has been overwritten.
  void update(const std::function<void()>& step);
  /// See Strategy::bring_shard().
  void bring_shard(std::size_t index, bool overwrites);
  /// Writes what was written into the last one that it brought, and gives its memory back. @throws
  /// zero::Error if the disk fails.
  void leave_brought();

  /// Bytes of parameters and gradients that this rank holds at rest: after the update, before
  /// gradients are dropped.
  std::int64_t parameter_bytes() const;
  std::int64_t gradient_bytes() const;
  /// Whether anything is gathered of the unit before it runs.
  bool shards(std::size_t unit) const;
  /// Bytes of the largest unit whose parameters are sharded, when it is whole. The root is left
  /// out: it is never gathered ahead.
  std::int64_t largest_sharded_unit() const;
  using Gathers = std::function<std::int64_t(std::size_t unit)>;
  /// What this rank sends in a step of one micro-batch. `gathers`: how often a step gathers a
  /// unit whose parameters are sharded.
  SentBytes sent(const Gathers& gathers) const;
  /// What each further micro-batch gathers.
  std::int64_t gathered_bytes(const Gathers& gathers) const;

 private:
  struct Place {
    std::size_t buffer;
    std::size_t member;
  };

  // Of a unit whose shards are in a file.
  struct InFile {
    std::unique_ptr<ShardFile> file;
    base::KeptError problem;  // of this rank's disk: the next gather says it
    // Of a gather that is not finished: whether each rank has a problem.
    at::Tensor mine, all;
    std::optional<dist::Work> telling;
  };

  bool is_sharded(std::size_t unit) const;
  InFile* in_file(std::size_t unit);
  void keep_in_file(std::size_t unit);
  void begin_read(std::size_t unit);
  void end_read(std::size_t unit);
  void add_unit(std::size_t unit, std::int64_t buffer_bytes, const FlatOptions& options);

  const nn::ParameterList& list_;
  dist::Communicator& communicator_;
  memory::StoragePool& pool_;
  std::vector<FlatParameters> buffers_;
  std::vector<Place> places_;                      // by parameter
  std::vector<std::size_t> unit_of_;               // by buffer
  std::vector<std::vector<std::size_t>> of_unit_;  // buffers

  optim::OffloadOptions offload_;
  dist::Communicator* readers_ = nullptr;  // all ranks that gather; null: nothing is in files
  std::vector<InFile> files_;              // by unit
  std::optional<std::size_t> brought_;     // the unit that bring_shard() has brought
};

}  // namespace zero::train
