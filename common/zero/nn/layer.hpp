#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

  /// Casts or moves the module, as LibTorch's function does. Only before a strategy has the model:
  /// afterwards parameters may be windows of a buffer, or have no bytes to cast.
  /// @throws zero::Error while a strategy has it.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  /// Writes the module into `archive`, as LibTorch's function does. While a strategy has it, the
  /// archive gets copies, which later steps do not change; they take as many bytes as the
  /// parameters. Acts on this rank alone.
  /// @throws zero::Error, before anything is written, if one of its parameters is not whole.
  void save(torch::serialize::OutputArchive& archive) const override;

  /// Reads the module from `archive`, as LibTorch's function does, before a strategy has the model.
  /// @throws zero::Error while a strategy has it: its optimizer and other ranks would not see the
  /// values.
  void load(torch::serialize::InputArchive& archive) override;

  /// @throws zero::Error always: a layer cannot be cloned.
  std::shared_ptr<Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// The name, in messages, of the strategy that has the model; empty if none has (set_holder() of
  /// parameters.hpp sets it).
  const std::string& holder() const { return holder_; }
  /// `before_read` is called before all parameters are read: it waits for gathers in flight.
  void set_holder(const std::string& holder, std::function<void()> before_read = {}) {
    holder_ = holder;
    before_read_ = std::move(before_read);
  }

 protected:
  /// Registers a parameter of the given shape that requires a gradient. Outside of defer() it has
  /// bytes at once, uninitialised, charged to Category::kParameters: call
  /// initialize_parameters() on the finished model. If `placement` cuts it, `sizes` are those of
  /// the whole and this rank's part is registered. Throws zero::Error if parts would not be equal.
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes, Initializer initializer,
                           at::ScalarType dtype = at::kFloat,
                           const TensorPlacement& placement = {});

 private:
  class Copies;
  void check_not_taken(const char* function, const char* instead) const;
  void check_whole() const;

  std::map<std::string, Initializer> initializers_;
  std::map<std::string, TensorPlacement> placements_;  // of a model that is split
  std::string holder_;
  std::function<void()> before_read_;
};

}  // namespace zero::nn
