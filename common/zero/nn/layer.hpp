#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

  /// Writes the module into `archive`, as LibTorch's does. While a strategy has it, the archive
  /// gets copies, so that later steps do not change them; they take as many bytes as the
  /// parameters. Acts on this rank alone.
  /// @throws zero::Error, before anything is written, where a parameter of it is not whole.
  void save(torch::serialize::OutputArchive& archive) const override;

  /// Reads the module from `archive`, as LibTorch's does, before a strategy has the model.
  /// @throws zero::Error while a strategy has it: its optimizer and other ranks would not see the
  /// values.
  void load(torch::serialize::InputArchive& archive) override;

  /// @throws zero::Error: a layer has no function that makes another one like it.
  std::shared_ptr<Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// The strategy that has the model, as its name is shown in messages; empty where none has
  /// (set_holder() of parameters.hpp sets it).
  const std::string& holder() const { return holder_; }
  /// `before_read` is called before all parameters are read: it waits for those on their way.
  void set_holder(const std::string& holder, std::function<void()> before_read = {}) {
    holder_ = holder;
    before_read_ = std::move(before_read);
  }

 protected:
  /// Registers a parameter of the given shape that requires a gradient. Outside DeferredStorage it
  /// gets its bytes at once, uninitialised, charged to Category::kParameters: call
  /// initialize_parameters() on the finished model.
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes, Initializer initializer,
                           at::ScalarType dtype = at::kFloat);

 private:
  class Copies;
  void check_not_taken(const char* function, const char* instead) const;
  void check_whole() const;

  std::map<std::string, Initializer> initializers_;
  std::string holder_;
  std::function<void()> before_read_;
};

}  // namespace zero::nn
