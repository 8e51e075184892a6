#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include <zero/distributed/statement.hpp>
#include <zero/step_gradients.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// What an engine checks of its own rank before a backward() and before an update. Sends nothing.
class StepChecks {
 public:
  /// Both must outlive this object. Notes the model's parameters.
  StepChecks(train::Strategy& strategy, StepGradients& gradients);

  /// The topic is which parameters are trained.
  dist::Statement before_backward(const at::Tensor& loss) const;
  /// `losses`: of the step's micro-batches, read into `values` if the gradients are the engine's;
  /// these are shown then. The topic is what was done to gradients. The host waits for a device.
  dist::Statement before_update(const std::vector<at::Tensor>& losses, std::vector<double>& values);

  /// The step has a micro-batch: until end_step() which parameters are trained may not change.
  void begin_step() { trainable_ = trainable(); }
  void end_step() { trainable_.clear(); }

 private:
  std::vector<bool> trainable() const;
  std::string problem_of_backward(const at::Tensor& loss) const;
  std::string problem_of_gradients() const;

  train::Strategy& strategy_;
  StepGradients& gradients_;
  std::vector<at::Tensor> registered_;  // the model's parameters when the engine was made
  std::vector<bool> trainable_;         // by parameter, at this step's first backward()
};

}  // namespace zero
