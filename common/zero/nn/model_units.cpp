#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/nn/model_units.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

using torch::nn::Module;

bool is_list(const Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

std::int64_t bytes_of(const Module& module) {
  std::int64_t bytes = 0;
  for (const at::Tensor& p : module.parameters()) bytes += static_cast<std::int64_t>(p.nbytes());
  return bytes;
}

bool has_list(const Module& module) {
  const auto inside = module.modules(/*include_self=*/false);
  return std::ranges::any_of(inside, [](const auto& m) { return is_list(*m) && bytes_of(*m) > 0; });
}

void find_units(const Module& module, const std::string& path, std::int64_t least,
                std::vector<std::string>& found) {
  for (const auto& child : module.named_children()) {
    const std::string name = path_to(path, child.key());
    if (!is_list(module) && (is_list(*child.value()) || has_list(*child.value()))) {
      find_units(*child.value(), name, least, found);
    } else if (bytes_of(*child.value()) >= (is_list(module) ? 1 : least)) {
      found.push_back(name);
    }
  }
}

}  // namespace

UnitRule default_units(std::int64_t bytes) {
  return [bytes](const Module& module) {
    std::vector<std::string> found;
    find_units(module, "", bytes, found);
    return found;
  };
}

UnitRule units_named(std::vector<std::string> names) {
  return [names = std::move(names)](const Module& module) {
    std::vector<std::string> found;
    for (const std::string& name : names) {
      const std::size_t before = found.size();
      for (const auto& inside : module.named_modules("", /*include_self=*/false)) {
        if (match_name(inside.key(), name)) found.push_back(inside.key());
      }
      if (found.size() == before) {
        throw Error(
            fmt::format("no module is named '{}': units_named() cannot make it a unit", name));
      }
    }
    return found;
  };
}

ModelUnits::ModelUnits(Module& module, const UnitRule& rule) : module_(module) {
  if (dynamic_cast<const Unit*>(&module) != nullptr) return;
  root_ = std::make_shared<Root>();
  const auto inside = module.named_modules("", /*include_self=*/false);
  for (const std::string& path : rule(module)) {
    const auto* const found = inside.find(path);
    if (found == nullptr)
      throw Error(fmt::format("no module is named '{}': it cannot be a unit", path));
    const Module& unit = **found;
    if (dynamic_cast<const Unit*>(&unit) == nullptr && bytes_of(unit) > 0) {
      units_[&unit] = std::make_shared<Unit>();
    }
  }
  std::vector<ReadWatch::Watched> watched;
  const ParameterList list = list_parameters(*this);
  for (const auto& [_, unit] : units_) {
    ReadWatch::Watched& last = watched.emplace_back(unit);
    for (const std::size_t i : list.units[list.index_of(*unit)].parameters) {
      last.parameters.push_back(list.parameters[i].tensor);
    }
  }
  watch_.emplace(std::move(watched));
}

Unit* ModelUnits::unit_of(Module& module) const {
  if (auto* const unit = dynamic_cast<Unit*>(&module)) return unit;
  if (&module == &module_) return root_.get();
  const auto found = units_.find(&module);
  return found == units_.end() ? nullptr : found->second.get();
}

const WholeModel* ModelUnits::whole_model() const {
  const auto* const unit = dynamic_cast<const Unit*>(&module_);
  return unit == nullptr ? nullptr : unit->whole_model();
}

void ModelUnits::set_hooks(UnitHooks* hooks) {
  nn::set_hooks(module_, hooks);
  if (root_) root_->set_hooks(hooks);
  for (const auto& [_, unit] : units_) unit->set_hooks(hooks);
}

at::Tensor ModelUnits::forward(const std::function<at::Tensor()>& pass) {
  if (!watch_) return pass();
  return root_->run([&] { return calls_found_ ? watch_->forward(pass) : pass(); });
}

void ModelUnits::backward(const std::function<void()>& pass) {
  return watch_ && calls_found_ ? watch_->run(pass) : pass();
}

}  // namespace zero::nn
