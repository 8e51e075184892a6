#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <04_tensor_sharding/tensor_sharding.hpp>

#include "prefetch.hpp"
#include "reduction_queue.hpp"
#include "sharding_options.hpp"

namespace zero {

/// Stages 0 to 3 in one class. Communication starts as early as possible and is waited for as late
/// as possible:
///
///   - a bucket of gradients is sent when backward has filled it and those before it in the order
///     that all ranks have, at stage 3 within its unit's backward;
///   - at stage 3 the next units are gathered while a unit runs;
///   - at stages 1 and 2, with the option defer_parameter_gather, updated parameters are gathered
///     while the next forward begins: each unit waits for its own.
///
/// The buffers are those of chapter 04, its base. The results are those of chapters 04 and 00, bit
/// for bit: a reduction adds in the same order, whenever it runs.
///
/// What decides on the reduction of a bucket of gradients, in this order:
///
///     train::FlatParameterList   which parameters it has
///     train::UnitSchedule    when it may be reduced, after which other buckets
///     ReductionQueue             whether it waits for buckets in flight
///     train::FlatGradients       by which transfer. start_reduce() calls it, and finish_reduce()
///                                makes the result the `.grad` of what the optimizer updates
///
/// With defer_parameter_gather at stages 1 and 2, a read after sync_parameters() and before the
/// next forward() needs unshard() before it and reshard() after it.
class ShardedDataParallel : public TensorSharding {
 public:
  /// `options`: in range, and the same on all ranks. Called by all ranks; blocks.
  /// `transfers`: how later chapters send. If it has groups, they are axes of `arguments.mesh`.
  ShardedDataParallel(const train::StrategyArguments& arguments, const ShardingOptions& options,
                      const train::Transfers& transfers = {});

  using Strategy::forward;
  at::Tensor forward(const std::function<at::Tensor()>& pass,
                     std::optional<std::int64_t> loss_terms) override;
  void backward(const at::Tensor& loss) override;
  void finish_backward() override;
  void sync_parameters() override;
  void zero_grad() override;

  /// The most bytes of gradients that were in flight at once.
  std::int64_t most_in_flight() const { return in_flight_.most_seen(); }
  /// Whether this rank knows the order of units, and how many passes ran in another order.
  bool knows_order() const { return forward_.known() && backward_.known(); }
  std::int64_t passes_that_differed() const { return lost_passes_; }

 protected:
  void gather(std::size_t unit, train::Gather why) override;
  void drop(std::size_t unit) override;
  void gradient_ready(std::size_t index) override;
  void reduce(std::size_t buffer) override;

 private:
  void reduced(const train::FlatGradients& bucket);
  void use(std::size_t unit, Prefetch& pass);
  void compare_order(const Prefetch& pass, const char* name);
  void note_lost(const Prefetch& pass, const char* name);
  std::string order_of(const Prefetch& pass) const;

  ShardingOptions options_;
  ReductionQueue in_flight_;
  Prefetch forward_;
  Prefetch backward_;
  std::int64_t lost_passes_ = 0;
  std::vector<std::size_t> trained_;  // the order of the last forward that trained
};

}  // namespace zero
