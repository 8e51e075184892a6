#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace zero::optim {

/// What a strategy needs of an optimizer: update, and forget parameters that other ranks own.
///
/// Optimizer state is created at a parameter's first update, so that a rank which narrows its
/// optimizer before the first step never holds state for what it does not own. All functions act on
/// this rank alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates, in place, every parameter that it holds and whose gradient is defined; the others and
  /// their step counts stay untouched. State is charged to memory::Category::kOptimizer.
  virtual void step() = 0;

  /// Keeps the parameters for which `keep` says true and forgets the rest with their state.
  void narrow(const std::function<bool(const at::Tensor&)>& keep) {
    replace([&keep](const at::Tensor& tensor) { return keep(tensor) ? tensor : at::Tensor(); });
  }

  /// Asks `with` for every parameter that it holds: an undefined tensor makes it forget the
  /// parameter with its state, another tensor (a shard of it) takes its place and its settings,
  /// without state. The same tensor leaves everything as it is.
  virtual void replace(const std::function<at::Tensor(const at::Tensor&)>& with) = 0;

  /// State tensors of a parameter by name (AdamW: "exp_avg", "exp_avg_sq"), of the parameter's
  /// number of elements; empty before its first update. They alias the optimizer's own.
  virtual std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const = 0;

  /// Updates that a parameter has had.
  virtual std::int64_t steps(const at::Tensor& parameter) const = 0;

  /// Bytes of state that `parameter`, which it holds, has after its first update: those of the
  /// tensors in state(). Unless an optimizer knows better, two of the parameter's size and dtype.
  virtual std::int64_t state_bytes(const at::Tensor& parameter) const;

  /// From the next step on, gradients are taken to be `scale` times what they should be (the loss
  /// was multiplied by it): step() divides by it, in float32, before it does anything else.
  /// @throws zero::Error for another scale than 1, unless the optimizer can
  /// (with_master_weights()).
  virtual void set_gradient_scale(double scale);

  /// What a checkpoint notes of an optimizer.
  struct Settings {
    std::string kind;  ///< "AdamW"; empty where state() does not know all of the state
    std::vector<std::map<std::string, double>> groups;  ///< each group's numbers by name
  };
  virtual Settings settings() const { return {}; }

  /// Puts a parameter's state back to what state() and steps() gave, from the next step on.
  /// `states` are flat, of the parameter's number of elements and the dtypes that state() gave, and
  /// are taken over, not copied; none at all for a parameter that has not been updated yet.
  /// @throws zero::Error where the parameter is not held, the states are not this optimizer's, or
  /// it cannot take any back (settings().kind is empty).
  virtual void load_state(const at::Tensor& parameter, std::int64_t steps,
                          const std::map<std::string, at::Tensor>& states);

  /// Sets the learning rate of every parameter group, from the next step on.
  virtual void set_learning_rate(double rate) = 0;

  /// Runs `closure` (which evaluates the model and fills gradients), then step(); gives its loss.
  at::Tensor step(const std::function<at::Tensor()>& closure);
};

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
