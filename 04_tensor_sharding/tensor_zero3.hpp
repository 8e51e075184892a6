#pragma once

#include <cstdint>
#include <vector>

#include <zero/train/backward_schedule.hpp>

#include "tensor_sharding.hpp"

namespace zero {

/// Stage 3 over split tensors: as stage 2, and of the parameters too only the shard stays. A unit
/// is gathered before it runs forward and again before it runs backward, and resharded after each;
/// the root, last in forward and first in backward, stays whole in between. Sends 3F (N-1)/N less
/// the root's second gather. Variants:
///   "flat" (default)  one buffer and one collective a unit
///   "per_parameter"   one buffer and one collective a parameter
///   "leaf"            every layer that holds parameters (nn::Leaf) is gathered by itself, around
///                     each use: at most one is whole, beside parameters of the root that are in
///                     no layer. That takes more and smaller collectives. A layer that runs twice
///                     in a forward, such as an embedding that is the output head too, is gathered
///                     four times. In a part under activation checkpointing, layers stay whole
///                     from when they run again until their backward, which follows at once: those
///                     of one part are whole together, and what is sent is as without it.
///   "whole"           gathers the whole model before forward, keeps it through backward:
///                     2F (N-1)/N, and a peak of F of parameters
class TensorZero3 : public TensorSharding {
 public:
  explicit TensorZero3(const train::StrategyArguments& arguments);

  at::Tensor forward(const data::Batch& batch) override;
  void backward(const at::Tensor& loss) override;
  void finish_backward() override;
  void optimizer_step() override;
  void zero_grad() override;

  void pre_forward(nn::Unit& unit) override;
  void post_forward(nn::Unit& unit) override;
  void pre_backward(nn::Unit& unit) override;
  void records_backward(nn::Unit& unit) override;
  void post_backward(nn::Unit& unit) override;

  train::ModelStateBytes predicted_bytes() const override;
  /// With as many uses of each unit as the last forward pass that recorded a graph made of it; one
  /// of each before.
  std::int64_t predicted_traffic() const override;

 protected:
  void gradient_ready(std::size_t index) override;
  void group_ready(std::size_t group) override;
  void gather(std::size_t unit) override;
  /// Leaves this rank's shards of them only.
  void drop(std::size_t unit) override;

 private:
  /// The units to gather or reshard when `unit` runs: itself, or under "whole" all for the root.
  std::vector<std::size_t> units_to_gather(std::size_t unit) const;
  void reshard_all();
  void end_unit(std::size_t unit);
  void launch(std::size_t group);
  bool is_leaf(std::size_t unit) const;
  bool has_frozen(std::size_t unit) const;
  bool has_all_gradients(std::size_t unit) const;
  /// From the end of its forward to its backward. Unit 0 is the root.
  bool stays_whole(std::size_t unit) const { return whole_model_ || unit == 0; }
  /// How often a unit is gathered in a step with one micro-batch.
  std::int64_t gathers(std::size_t unit) const;

  bool whole_model_;                // variant "whole"
  bool by_leaf_;                    // variant "leaf"
  bool trains_ = false;             // the forward that runs is one that a backward follows
  bool threw_ = false;              // the last pass; units may be whole still
  bool in_backward_ = false;        // so that a forward that runs again inside it can be told apart
  std::vector<std::int64_t> uses_;  // by unit, in a forward
  train::ReductionSchedule order_;
  train::BackwardSchedule schedule_;
  std::vector<std::size_t> unit_of_;  // by group
  std::vector<std::size_t> ready_;    // by unit: groups whose gradients have come
};

}  // namespace zero
