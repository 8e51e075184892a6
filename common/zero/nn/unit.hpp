#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include <zero/nn/layer.hpp>

namespace zero::nn {

class Unit;

/// What a strategy does around the units of a model. Every function is called on the thread that
/// runs forward or backward, may block, and may throw (the exception leaves forward() or
/// backward()). All may be called several times for one unit in one step, where the model uses the
/// unit more than once.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;

  /// Before the unit's forward: its parameters must be whole when this returns.
  virtual void pre_forward(Unit& unit) {}
  /// After the unit's forward: its parameters are not read again until pre_backward().
  virtual void post_forward(Unit& unit) {}
  /// A gradient of one of the unit's outputs is known, so that the backward of one use comes next:
  /// its parameters must be whole when this returns. Once for each use and pass of autograd.
  virtual void pre_backward(Unit& unit) {}
  /// A backward of one use that records a graph (create_graph) has given a gradient of one of the
  /// inputs: pre_backward() comes once more, when that graph runs backward.
  virtual void records_backward(Unit& unit) {}
  /// The gradients of all inputs of one use of the unit are known. Not called where no input
  /// requires a gradient. A parameter's gradient may still be to come.
  virtual void post_backward(Unit& unit) {}
};

/// The parameters that are gathered and resharded together: a decoder layer, or the root of a model
/// with whatever no inner unit holds (FSDP uses the word in the same sense).
///
/// LibTorch's modules have no hooks, so a unit owns its call site: a class derived from Unit writes
/// its forward as usual and hands the body to run(), which puts the hooks around it.
///
///     at::Tensor forward(const at::Tensor& x) {
///       return run([&] { return body(x); }, {x});
///     }
///
/// Outputs may be changed in place, as the body's own result may be. An output that is an input, or
/// a view of something that others may read, may not: LibTorch says so.
///
/// A strategy may give the parameters up when the last of their gradients is there. So a body that
/// uses a parameter detached as well must do that after the use that has a gradient.
class Unit : public Layer {
 public:
  /// Sets who is called around this unit; nullptr for nobody. Not owned: it must outlive every
  /// forward and backward of the unit. Does not reach into inner units (set_hooks() of
  /// parameters.hpp does).
  void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }
  UnitHooks* hooks() const { return hooks_; }

 protected:
  /// Runs `body` between the hooks and registers the backward hooks: on every output that requires
  /// a gradient (pre_backward) and on every input that does (post_backward, once all have theirs).
  /// `inputs` are the tensors through which gradients leave the unit.
  at::Tensor run(const std::function<at::Tensor()>& body, const std::vector<at::Tensor>& inputs);

  /// The same for a unit with several outputs.
  std::vector<at::Tensor> run_many(const std::function<std::vector<at::Tensor>()>& body,
                                   const std::vector<at::Tensor>& inputs);

 private:
  void watch_inputs(const std::vector<at::Tensor>& inputs);
  void watch_outputs(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);
  at::Tensor watched(const at::Tensor& output, const std::shared_ptr<int>& pass, bool is_shared);

  UnitHooks* hooks_ = nullptr;
};

/// A layer that holds parameters itself and runs them in one autograd function: the smallest unit
/// that there can be. It is one only for those who ask for Granularity::kLeaf (parameters.hpp);
/// else it has no hooks, costs nothing, and its parameters belong to the unit around it.
class Leaf : public Unit {
 protected:
  /// Runs body(input), as Unit::run() does, with one difference: post_backward() comes as soon as
  /// the backward of this use has run, also where others read `input` too. The leaf must be done
  /// with its parameters then, which it is if `body` is one function of functional.hpp.
  at::Tensor run_leaf(const at::Tensor& input,
                      const std::function<at::Tensor(const at::Tensor&)>& body);
};

}  // namespace zero::nn
