#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <optional>
#include <string>

#include <zero/nn/tensor_placement.hpp>

namespace zero::nn {

/// How the first values of a parameter are drawn.
struct Initializer {
  enum class Kind { kNormal, kUniform, kConstant };
  Kind kind = Kind::kConstant;
  /// Normal: the standard deviation; uniform: the bound b of [-b, b); constant: the value.
  double value = 0.0;

  static Initializer normal(double standard_deviation) {
    return {Kind::kNormal, standard_deviation};
  }
  static Initializer uniform(double bound) { return {Kind::kUniform, bound}; }
  static Initializer constant(double value) { return {Kind::kConstant, value}; }
};

/// A module whose parameters know their initializers, so that values can be drawn later and on any
/// rank. The project's own layers derive from it; a user's modules need not.
class Layer : public torch::nn::Module {
 public:
  /// The initializer of this module's parameter `name` ("weight"); nothing for a parameter that was
  /// not registered with add_parameter().
  std::optional<Initializer> initializer(const std::string& name) const;
  /// Where its parameter `name` lies on a tensor axis.
  TensorPlacement placement(const std::string& name) const;

 protected:
  /// Registers a parameter of the given shape that requires a gradient. Outside of defer() it has
  /// bytes at once, uninitialised, charged to Category::kParameters: call
  /// initialize_parameters() on the finished model. If `placement` cuts it, `sizes` are those of
  /// the whole and this rank's part is registered. Throws zero::Error if parts would not be equal.
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes, Initializer initializer,
                           at::ScalarType dtype = at::kFloat,
                           const TensorPlacement& placement = {});

 private:
  std::map<std::string, Initializer> initializers_;
  std::map<std::string, TensorPlacement> placements_;  // of a model that is split
};

}  // namespace zero::nn
