#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace zero::nn {

/// How the first values of a parameter are made.
struct Initializer {
  enum class Kind { kNormal, kUniform, kConstant };
  Kind kind = Kind::kConstant;
  double value =
      0.0;  ///< normal: the standard deviation; uniform: the bound of [-b, b); constant: it

  static Initializer normal(double standard_deviation) {
    return {Kind::kNormal, standard_deviation};
  }
  static Initializer uniform(double bound) { return {Kind::kUniform, bound}; }
  static Initializer constant(double value) { return {Kind::kConstant, value}; }
};

/// While it lives, layers built on this thread make parameters that know their shape and hold no
/// bytes (memory::without_storage). A strategy gives them storage and values later, whole or unit
/// by unit, so that a rank never holds more than its stage allows, not even at the start.
class DeferredStorage {
 public:
  DeferredStorage();
  ~DeferredStorage();
  DeferredStorage(const DeferredStorage&) = delete;
  DeferredStorage& operator=(const DeferredStorage&) = delete;

  /// True inside a scope.
  static bool active();

 private:
  bool previous_;
};

/// A module whose parameters say how they are initialised, so that they can be made late and on any
/// rank. The project's own layers derive from it; a user's modules need not.
class Layer : public torch::nn::Module {
 public:
  /// The initializer of the own parameter `name` ("weight"); nothing for a parameter that was
  /// registered in another way.
  std::optional<Initializer> initializer(const std::string& name) const;

  /// Casts or moves the module, as LibTorch's does, before a strategy has the model. Afterwards
  /// parameters may be windows of a buffer, or hold nothing that could be cast.
  /// @throws zero::Error while a strategy has it.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  /// The strategy that has the model, as its name is shown in messages; empty where none has
  /// (set_holder() of parameters.hpp sets it).
  const std::string& holder() const { return holder_; }
  void set_holder(const std::string& holder) { holder_ = holder; }

 protected:
  /// Registers a parameter of the given shape that requires a gradient. Outside DeferredStorage it
  /// gets its bytes at once, uninitialised, charged to Category::kParameters: call
  /// initialize_parameters() on the finished model.
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes, Initializer initializer,
                           at::ScalarType dtype = at::kFloat);

 private:
  void check_not_taken() const;

  std::map<std::string, Initializer> initializers_;
  std::string holder_;
};

}  // namespace zero::nn
