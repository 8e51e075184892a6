#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace zero::optim {

/// What one rank has moved so far.
struct OffloadTraffic {
  std::int64_t read_bytes = 0;  ///< from the disk
  std::int64_t written_bytes = 0;
  std::int64_t to_host_bytes = 0;  ///< from a device
  std::int64_t to_device_bytes = 0;
  OffloadTraffic& operator+=(const OffloadTraffic& other) {
    read_bytes += other.read_bytes;
    written_bytes += other.written_bytes;
    to_host_bytes += other.to_host_bytes;
    to_device_bytes += other.to_device_bytes;
    return *this;
  }
};

/// What a strategy, checkpoints and offload need from an optimizer. First of all: to update, and to
/// forget parameters that other ranks own.
///
/// Optimizer state is created at a parameter's first update, so that a rank that narrows its
/// optimizer before the first step never holds state for what it does not own. All functions act on
/// this rank alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates, in place, every parameter that it holds and whose gradient is defined; the others and
  /// their step counts stay untouched. State is charged to memory::Category::kOptimizer.
  virtual void step() = 0;

  /// Keeps the parameters for which `keep` returns true and forgets the rest with their state.
  void narrow(const std::function<bool(const at::Tensor&)>& keep) {
    replace([&keep](const at::Tensor& tensor) { return keep(tensor) ? tensor : at::Tensor(); });
  }

  /// Calls `with` for every parameter that it holds. If it returns an undefined tensor, the
  /// optimizer forgets the parameter with its state. Another tensor (a shard of the parameter)
  /// replaces it and keeps its settings, without state. The same tensor changes nothing.
  virtual void replace(const std::function<at::Tensor(const at::Tensor&)>& with) = 0;

  /// State tensors of a parameter by name (AdamW: "exp_avg", "exp_avg_sq"), with the parameter's
  /// number of elements; empty before its first update. They share memory with the optimizer's own.
  virtual std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const = 0;

  /// The dtypes of state() by name, without reading it.
  virtual std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const;

  /// Updates that a parameter has had.
  virtual std::int64_t steps(const at::Tensor& parameter) const = 0;

  /// Bytes of state that `parameter`, which it holds, has after its first update: those of the
  /// tensors in state(). The default is two tensors of the parameter's size and dtype.
  virtual std::int64_t state_bytes(const at::Tensor& parameter) const;

  /// Bytes of memory for states of `state_bytes` in all, where the parameters are; less if they lie
  /// elsewhere.
  virtual std::int64_t resident_bytes(std::int64_t state_bytes) const { return state_bytes; }

  /// Whether it updates a parameter only as a whole (Muon). Stages that cut parameters refuse it.
  virtual bool needs_whole() const { return false; }

  /// Whether with_offload() can keep its states on a disk: it updates each element by that
  /// element's states alone, a part of a parameter like the whole.
  virtual bool can_offload() const { return false; }
  /// Whether states are elsewhere (with_offload()). step() may then fail on one rank alone, so that
  /// all ranks have to agree on how it ended; there is no room for all states where the parameters
  /// are. The same on all ranks.
  virtual bool is_offloaded() const { return false; }

  /// What it has moved since it was made; zeros if nothing is elsewhere.
  virtual OffloadTraffic offload_traffic() const { return {}; }
  /// Reads and writes all states that are on a disk once, as a step does, and changes nothing: to
  /// measure the disk. @throws zero::Error if it fails.
  virtual void stream_offloaded() {}

  // An optimizer that updates in another memory (with_offload() on a device) copies gradients there
  // before step(). For the others the first two do nothing.

  /// The gradients of these parameters are averaged; from now on only scale_gradients() changes
  /// them. Starts to copy them, behind earlier work of the current stream.
  virtual void take_gradients(const std::vector<at::Tensor>& /*parameters*/) {}
  /// All gradients are averaged: later work of the current stream runs behind their copies. A
  /// gradient that is changed after that is copied once more, by step().
  virtual void finish_taking() {}
  /// Multiplies `gradients`, which are those of all parameters that it updates, and what it has
  /// taken of them.
  virtual void scale_gradients(const std::vector<at::Tensor>& gradients, double factor);

  /// From the next step on, gradients are `scale` times too large (the loss was multiplied by it):
  /// step() divides them by it, in float32, before it does anything else. Throws zero::Error for a
  /// scale other than 1, unless the optimizer supports it (with_master_weights()).
  virtual void set_gradient_scale(double scale);

  /// What a checkpoint records of an optimizer.
  struct Settings {
    std::string kind;  ///< "AdamW"; empty if state() does not have all of the state
    std::vector<std::map<std::string, double>> groups;  ///< each group's numbers by name
  };
  virtual Settings settings() const { return {}; }

  /// Restores a parameter's state to what state() and steps() returned, from the next step on.
  /// `states` are flat, with the parameter's number of elements and the dtypes of state(); they are
  /// used as they are, not copied. Empty for a parameter that has not been updated yet. Throws
  /// zero::Error if the parameter is not held, the states are not this optimizer's, or it cannot
  /// restore any (settings().kind is empty).
  virtual void load_state(const at::Tensor& parameter, std::int64_t steps,
                          const std::map<std::string, at::Tensor>& states);

  /// `values`, flat, are those of a parameter that it holds before they were rounded to its type:
  /// what it keeps in a wider type (with_master_weights()) becomes them. Others do nothing. Throws
  /// zero::Error if that lies on a disk.
  virtual void take_exact(const at::Tensor& /*parameter*/, const at::Tensor& /*values*/) {}
  /// Whether it keeps anything in a wider type.
  virtual bool keeps_exact() const { return false; }

  /// Sets the learning rate of every parameter group, from the next step on. Throws zero::Error if
  /// it is negative or not finite.
  virtual void set_learning_rate(double rate) = 0;

  /// Sets the learning rate of each group, in the order of settings().groups. Throws zero::Error if
  /// there is not one rate for each group. An optimizer that does not override it has one group.
  virtual void set_learning_rates(const std::vector<double>& rates);

  /// The group of a parameter that it holds: an index into settings().groups.
  virtual std::size_t group_of(const at::Tensor& /*parameter*/) const { return 0; }

 protected:
  /// Throws zero::Error unless there are as many rates as groups, all finite and not negative.
  static void check_rates(const std::vector<double>& rates, std::size_t groups);
};

/// Throws zero::Error that names the number if a learning rate, weight decay or epsilon is not a
/// finite number from 0, or a beta not one from 0 to below 1.
void check_settings(const Optimizer::Settings& settings);

/// Makes an optimizer over the given trainable parameters (registration order).
using OptimizerFactory =
    std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>& parameters)>;

/// Parameters that share settings.
template <typename Options>
struct Group {
  std::vector<at::Tensor> parameters;
  Options options;
};

}  // namespace zero::optim
