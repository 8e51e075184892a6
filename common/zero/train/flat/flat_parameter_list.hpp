#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/train/backward/unit_schedule.hpp>
#include <zero/train/flat/flat_gradients.hpp>
#include <zero/train/flat/flat_parameters.hpp>

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

  /// See FlatParameters::initialize(). From then on the layers of zero/nn write gradients into the
  /// gradient buffers. Called by all ranks; blocks.
  void initialize(const FlatParameters::FirstValue& first_value);

  std::size_t size() const { return buffers_.size(); }
  FlatParameters& operator[](std::size_t b) { return buffers_[b]; }
  FlatGradients& gradients(std::size_t b) { return gradients_[b]; }
  const std::vector<FlatParameters>& buffers() const { return buffers_; }
  /// For UnitSchedule: item k is buffer k. A frozen buffer has no parameters there and is never
  /// reduced.
  std::vector<UnitSchedule::Item> items() const;

  /// FlatParameters::bring() of the buffer of parameter `index`.
  void bring(std::size_t index);
  /// What this rank has of each parameter, from initialize() on.
  Placements placements() const;
  /// Throws zero::Error for a parameter that was frozen when it was flattened.
  void collect(std::size_t index);

  // For the buffers of a unit, or for all.
  void start_gather(std::size_t unit);
  void finish_gather(std::size_t unit);
  void gather_exactly(std::size_t unit);
  void keep_writes(std::size_t unit);
  void reshard(std::size_t unit);
  /// Starts to gather what the ranks have updated, in all buffers.
  void start_refresh();
  /// Blocks until no gather is in flight.
  void wait_gathers();
  /// See FlatParameters::collect_writes(). `schedule`: whose scopes live.
  ParameterWrites collect_writes(const UnitSchedule& schedule);
  void forget_writes();
  void drop_gradients();
  /// Blocks until nothing is left of the reductions that have finished.
  void finish_rests();

  /// Bytes of parameters and gradients that this rank holds at rest: after the update, before
  /// gradients are dropped.
  std::int64_t parameter_bytes() const;
  std::int64_t gradient_bytes() const;
  /// Whether anything is gathered of the unit before it runs.
  bool shards(std::size_t unit) const;
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

  void add_unit(std::size_t unit, std::int64_t buffer_bytes, const FlatOptions& options);

  const nn::ParameterList& list_;
  dist::Communicator& communicator_;
  memory::StoragePool& pool_;
  std::vector<FlatParameters> buffers_;
  std::vector<FlatGradients> gradients_;           // by buffer
  std::vector<Place> places_;                      // by parameter
  std::vector<std::size_t> unit_of_;               // by buffer
  std::vector<std::vector<std::size_t>> of_unit_;  // buffers
};

}  // namespace zero::train
