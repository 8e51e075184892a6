#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/nn/model.hpp>
#include <zero/nn/read_watch.hpp>

namespace zero::nn {

/// Chooses the units of a plain module: returns the dotted paths of modules inside it. Parameters
/// in none of them belong to the root. All ranks must choose alike; a strategy checks it.
using UnitRule = std::function<std::vector<std::string>(const torch::nn::Module& module)>;

/// Each element of a ModuleList or Sequential, and each other child with at least `bytes` of
/// parameters. If a child has such a list inside, the rule holds inside the child instead.
UnitRule default_units(std::int64_t bytes = 1 << 20);
/// The modules with these paths; `*` stands for any part of a path between dots: "layers.*".
/// @throws zero::Error, when the rule is used, for a name that no module has.
UnitRule units_named(std::vector<std::string> names);
/// The modules for which `is_unit` is true.
UnitRule units_if(
    std::function<bool(const std::string& path, const torch::nn::Module& module)> is_unit);

/// A torch::nn::Module that knows nothing of this library, as a Model: its units are found, and a
/// ReadWatch calls their hooks. It has no loss of its own: its forward is what the program computes
/// with the module, and goes to forward() of a strategy or an engine as a function.
///
/// A module may also have units of its own (nn::Unit), which call their hooks themselves.
class PlainModel final : public Model {
 public:
  /// `module` must outlive the model. Throws zero::Error if the rule names a module that is not
  /// there, and if a strategy has the module.
  explicit PlainModel(torch::nn::Module& module, const UnitRule& units = default_units());

  at::Tensor run_forward(const std::function<at::Tensor()>& pass) override;
  /// @throws zero::Error always.
  at::Tensor loss(const data::Batch& batch) override;
  at::Tensor predict(const data::Batch& batch) override { return loss(batch); }
  void run_backward(const std::function<void()>& backward) override;
  torch::nn::Module& module() override { return module_; }

  /// The unit of a module inside; null if it has none of its own.
  Unit* unit_of(const torch::nn::Module& module) const;
  void set_unit_hooks(UnitHooks* hooks);
  void watch_units(bool watch) override { watches_ = watch; }

 private:
  torch::nn::Module& module_;
  std::map<const torch::nn::Module*, std::shared_ptr<Unit>> units_;
  std::optional<ReadWatch> watch_;
  bool watches_ = true;
};

}  // namespace zero::nn
