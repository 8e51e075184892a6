#pragma once

#include <torch/types.h>

#include <cstddef>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::train {

class HeldModel;

/// Sends the first values of a strategy's model from rank 0 to the ranks that keep them. Used by
/// constructors of strategies. All ranks call the same functions, which block, unless stated
/// otherwise.
class FirstValues {
 public:
  /// All but `source` (StrategyArguments::values) must outlive this object. `list`: the parameters
  /// of `module`. `communicator`: the ranks that hold them.
  FirstValues(torch::nn::Module& module, const nn::ParameterList& list,
              dist::Communicator& communicator, HeldModel& held, nn::ParameterSource* source)
      : module_(module), list_(list), communicator_(communicator), held_(held), source_(source) {}

  /// Sends every parameter and buffer to all ranks. For stages that hold the whole model.
  void broadcast_all();
  /// Sends one parameter to `owner` alone; other ranks allocate nothing. For stages that hold whole
  /// parameters, each on one rank. Rank 0 has the value too, until it is released.
  void send(std::size_t index, int owner);
  /// Sends the buffers to all ranks, and notes the storages of the parameters (HeldModel). Call it
  /// when parameters have the storages that they keep until release().
  void broadcast_buffers();
  /// Writes the first value of one parameter, from the source, into `out` (of its shape and dtype).
  /// Acts on this rank alone.
  void write(std::size_t index, at::Tensor out);

 private:
  void fill(std::size_t index);

  torch::nn::Module& module_;
  const nn::ParameterList& list_;
  dist::Communicator& communicator_;
  HeldModel& held_;
  nn::ParameterSource* source_;
};

}  // namespace zero::train
