#pragma once

#include <cstddef>

namespace zero::train {

/// What a chapter does while forward and backward run. AutogradPasses calls these functions, on the
/// thread that runs the pass.
class PassHooks {
 public:
  /// False if the stage does nothing when a unit begins or ends: then a plain module is not watched
  /// for it (nn::PlainModel).
  virtual bool follows_units() const { return true; }
  /// True if the stage has ranks compare the order of their units. Otherwise a
  /// rank that gathers another unit than its peers is an error at once (dist::CallScope), after
  /// which they cannot go on.
  virtual bool compares_order() const { return false; }
  /// Before unit `unit` runs forward: its parameters must be whole when this returns.
  virtual void pre_forward(std::size_t unit) {}
  /// After it: they are not read again until pre_backward().
  virtual void post_forward(std::size_t unit) {}
  /// Before the backward of one use of the unit: they must be whole when this returns.
  virtual void pre_backward(std::size_t unit) {}
  /// Before and after autograd runs in backward().
  virtual void begin_backward() {}
  virtual void end_backward() {}
  /// Called inside backward(), when the gradient of trainable parameter `index` is complete. The
  /// order may differ between ranks: for reductions, a constructor calls reduce_in_backward().
  virtual void gradient_ready(std::size_t index) {}
  /// Makes the parameters of unit `unit` whole on all ranks. Does nothing if they are.
  virtual void gather(std::size_t unit) {}
  /// Drops what this rank does not keep of the unit, unless it is in use.
  virtual void drop(std::size_t unit) {}
  /// Drops all gradients.
  virtual void zero_grad() = 0;

 protected:
  ~PassHooks() = default;
};

}  // namespace zero::train
