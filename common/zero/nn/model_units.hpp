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

#include <zero/nn/read_watch.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {

/// Chooses the units of a module that is none itself: returns the dotted paths of modules inside
/// it. Parameters in none of them belong to the root. All ranks must choose alike; a strategy
/// checks it.
using UnitRule = std::function<std::vector<std::string>(const torch::nn::Module& module)>;

/// Each element of a ModuleList or Sequential, and each other child with at least `bytes` of
/// parameters. If a child has such a list inside, the rule holds inside the child instead.
UnitRule default_units(std::int64_t bytes = 1 << 20);
/// The modules with these paths; `*` stands for any part of a path between dots: "layers.*".
/// @throws zero::Error, when the rule is used, for a name that no module has.
UnitRule units_named(std::vector<std::string> names);
/// The units of a module, and the passes that run between their hooks.
///
/// A module that is a Unit itself calls the hooks of its units where it runs them. Of any other one
/// the units are found, and a ReadWatch calls their hooks. Around them is a root, which runs
/// while a pass does. Modules inside may still be units of their own (nn::Unit), which call their
/// hooks themselves.
class ModelUnits {
 public:
  /// `module` must outlive this object. `rule` is asked unless the module is a Unit. Throws
  /// zero::Error if it names a module that is not there.
  explicit ModelUnits(torch::nn::Module& module, const UnitRule& rule = default_units());

  torch::nn::Module& module() const { return module_; }
  /// The unit of the module or of one inside; null if it has none of its own.
  Unit* unit_of(torch::nn::Module& module) const;
  void set_hooks(UnitHooks* hooks);
  /// Unit::whole_model() of the module; null if that is no Unit.
  const WholeModel* whole_model() const;

  /// Runs what the program computes with the module.
  at::Tensor forward(const std::function<at::Tensor()>& pass);
  /// Runs a backward of a loss.
  void backward(const std::function<void()>& pass);
  /// Whether units were found, so that a ReadWatch calls their hooks.
  bool has_found_units() const { return watch_.has_value(); }
  /// Whether a strategy needs the hooks of found units; otherwise the next passes call the root's
  /// alone.
  void call_hooks_of_found(bool on) { calls_found_ = on; }

 private:
  struct Root : Unit {
    using Unit::run;
  };

  torch::nn::Module& module_;
  std::shared_ptr<Root> root_;  // of a module that is no Unit; else null
  std::map<const torch::nn::Module*, std::shared_ptr<Unit>> units_;
  std::optional<ReadWatch> watch_;
  bool calls_found_ = true;
};

}  // namespace zero::nn
