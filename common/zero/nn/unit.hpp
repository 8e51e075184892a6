#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include <zero/base/scoped.hpp>
#include <zero/nn/layer.hpp>

namespace zero::nn {

class Unit;
struct WholeModel;

/// The functions that a strategy runs around the units of a model. All are called on the thread
/// that runs forward or backward, may block, and may throw (the exception leaves forward() or
/// backward()). They may be called several times for one unit in one step, if the model uses the
/// unit more than once.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;

  /// Before the unit's forward: its parameters must be whole when this returns.
  virtual void pre_forward(Unit& unit) {}
  /// After the unit's forward: its parameters are not read again until pre_backward().
  virtual void post_forward(Unit& unit) {}
  /// Before the backward of one use, when a gradient of one of the unit's outputs is known: its
  /// parameters must be whole when this returns. Once for each use and pass of autograd. If the
  /// pass records a graph (create_graph, so that c10::GradMode is on), nothing is called when that
  /// one runs backward.
  virtual void pre_backward(Unit& unit) {}
  /// A part that runs again in backward, under a checkpoint, has read the unit: pre_backward() is
  /// called once more when the part's own graph runs backward.
  virtual void runs_again(Unit& unit) {}
};

/// While it lives, a backward pass on this thread runs inside another one, for a checkpoint, which
/// takes the hooks of its parameters away: the outer one adds more to the same gradients and calls
/// the hooks when these are complete. Until then no unit is over.
using SuppressGradientHooks = ScopedFlag<struct SuppressGradientHooksTag>;

/// Parameters that are gathered and resharded together: a decoder layer, or the root of a model
/// with all parameters outside inner units (FSDP uses the word in the same sense).
///
/// LibTorch's modules have no hooks, so a unit adds them where it is called: a class derived from
/// Unit writes its forward as usual and passes the body to run(), which calls the hooks around it.
///
///     at::Tensor forward(const at::Tensor& x) {
///       return run([&] { return body(x); });
///     }
///
/// An output is the tensor that the body returns, so that the caller may change it in place and set
/// hooks on it as without the unit. Only what the body hands on, or a leaf, is returned as a view.
///
/// A strategy may free the parameters when their last gradient is complete. So a body that also
/// uses a parameter detached must do that after the use that has a gradient.
class Unit : public Layer {
 public:
  /// Sets the hooks of this unit; nullptr for none. Not owned: they must outlive every forward and
  /// backward of the unit. Does not reach into inner units (set_hooks() of parameters.hpp does).
  void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }
  UnitHooks* hooks() const { return hooks_; }
  /// The model that this unit is a stage of, in a pipeline (parameters.hpp); null if it is whole.
  virtual const WholeModel* whole_model() const { return nullptr; }

 protected:
  /// Runs `body` between the hooks, and has pre_backward called for every output that requires a
  /// gradient.
  at::Tensor run(const std::function<at::Tensor()>& body);

  /// The same for a unit with several outputs.
  std::vector<at::Tensor> run_many(const std::function<std::vector<at::Tensor>()>& body);

 private:
  UnitHooks* hooks_ = nullptr;
};

}  // namespace zero::nn
