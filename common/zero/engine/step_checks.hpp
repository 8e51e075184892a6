#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/engine/step_gradients.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// What a rank finds before a backward() or an update, to compare with the others. Ranks exchange
/// digests, with numbers that they exchange anyway; the texts follow only if something is wrong.
struct Finding {
  /// Why it may not happen; empty: it may. "{ranks}" stands for all ranks that find the same.
  std::string problem = "";
  std::string state = "";  ///< the same on all ranks that have the same parameters; of lines

  /// Exact in a double; below 0 if there is a problem.
  double digest() const;
};

/// Called by all ranks of all axes with the digests of the data ranks. Throws zero::Error on all of
/// them if there is a problem on any rank, or states differ; `what` they are, for the message.
void verify_findings(const dist::Mesh& mesh, const Finding& mine,
                     const std::vector<double>& digests, const std::string& what);

/// What an engine checks of its own rank before a backward() and before an update. Sends nothing.
class StepChecks {
 public:
  /// Both must outlive this object. Notes the model's parameters.
  StepChecks(train::Strategy& strategy, StepGradients& gradients);

  /// `loss`: null in Engine::join(). The state is which parameters are trained.
  Finding before_backward(const at::Tensor* loss) const;
  /// `losses`: of the step's micro-batches, read into `values` if the gradients are the engine's;
  /// these are shown then. The state is what was done to gradients. The host waits for a device.
  Finding before_update(const std::vector<at::Tensor>& losses, std::int64_t step,
                        std::vector<double>& values);

  /// The step has a micro-batch: until end_step() which parameters are trained may not change.
  void begin_step() { trainable_ = trainable(); }
  void end_step() { trainable_.clear(); }

 private:
  std::vector<bool> trainable() const;
  std::string problem_of_gradients() const;

  train::Strategy& strategy_;
  StepGradients& gradients_;
  std::vector<at::Tensor> registered_;  // the model's parameters when the engine was made
  std::vector<bool> trainable_;         // by parameter, at this step's first backward()
};

}  // namespace zero
