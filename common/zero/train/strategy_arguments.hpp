#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/nn/model_units.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/optimizer.hpp>

namespace zero::train {

/// When the gradients of several micro-batches are averaged over ranks.
enum class Accumulation : std::uint8_t {
  kLocal,       ///< add up locally, reduce once, after the last micro-batch: least traffic
  kReduceEach,  ///< reduce every micro-batch and add up the averages: least memory when sharded
};

/// Everything a strategy is made from.
struct StrategyArguments {
  /// Must outlive the strategy.
  torch::nn::Module& module;
  /// The ranks that train. A communicator will do: all its ranks are data ranks then. If the model
  /// is split over a tensor axis or is a stage of a pipeline, the mesh that has those axes.
  dist::Mesh mesh;
  optim::OptimizerFactory optimizer;
  /// First values of parameters that have no storage yet; asked on rank 0 only, or, of a model that
  /// is split over a tensor or a pipeline axis, on rank 0 of the data axis of every tensor rank and
  /// stage.
  nn::ParameterSource* values = nullptr;
  std::string variant = {};  ///< one of the chapter's; empty: its default
  Accumulation accumulation = Accumulation::kLocal;
  /// The type in which gradients of 2-byte dtypes are reduced.
  dist::ReduceType reduce_type = dist::ReduceType::kOwn;
  /// Parameters that the strategy leaves to the program; see nn::list_parameters().
  std::vector<std::string> ignored = {};
  /// Chooses the units of a module that is no nn::Unit itself.
  nn::UnitRule units = nn::default_units();
  std::string mode = {};  ///< the strategy's name, for messages

  /// The same with mesh.with_shards().
  StrategyArguments with_shards(std::int64_t shard_size) const {
    StrategyArguments cut = *this;
    cut.mesh = mesh.with_shards(shard_size);
    return cut;
  }
};

}  // namespace zero::train
