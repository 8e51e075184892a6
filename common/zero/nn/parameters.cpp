#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/model_units.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

namespace impl = torch::autograd::impl;

// Walks the module tree in registration order and notes, for every parameter, the unit around it.
class Lister {
 public:
  // `units`: null if only a Unit is one.
  Lister(const ModelUnits* units, const std::vector<std::string>& ignored)
      : units_(units), unused_(ignored), ignored_(ignored) {}

  ParameterList list(torch::nn::Module& root) {
    visit(root, "", kNone);
    std::erase_if(result_.parameters, [this](const Parameter& p) {
      return !kept_.contains(p.tensor.unsafeGetTensorImpl());
    });
    for (std::size_t i = 0; i < result_.size(); ++i) {
      result_.units[result_.parameters[i].unit].parameters.push_back(i);
    }
    if (!unused_.empty()) {
      throw Error(fmt::format("no parameter is named '{}': it cannot be ignored", unused_.front()));
    }
    return std::move(result_);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void visit(torch::nn::Module& module, const std::string& path, std::size_t around) {
    Unit* const unit = units_ != nullptr ? units_->unit_of(module) : dynamic_cast<Unit*>(&module);
    if (unit != nullptr || around == kNone) {
      result_.units.push_back({unit, path, {}, around == kNone ? 0 : around});
      around = result_.units.size() - 1;
    }
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (!ignores(path_to(path, item.key()))) kept_.insert(item.value().unsafeGetTensorImpl());
      add(module, item.key(), item.value(), path, around);
    }
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path_to(path, child.key()), around);
    }
  }

  bool ignores(const std::string& name) {
    const auto fits = [&name](const std::string& pattern) { return match_name(name, pattern); };
    std::erase_if(unused_, fits);
    return std::ranges::any_of(ignored_, fits);
  }

  void add(torch::nn::Module& module, const std::string& name, const at::Tensor& tensor,
           const std::string& path, std::size_t unit) {
    const auto [found, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), result_.size());
    if (!is_new) {  // tied: it moves up to the innermost unit around all of its places
      Parameter& tied = result_.parameters[found->second];
      tied.unit = common_ancestor(tied.unit, unit);
      return;
    }
    const auto* layer = dynamic_cast<const Layer*>(&module);
    result_.parameters.push_back({path_to(path, name), tensor, unit,
                                  layer ? layer->initializer(name) : std::nullopt,
                                  layer ? layer->placement(name) : TensorPlacement()});
  }

  std::size_t common_ancestor(std::size_t a, std::size_t b) const {
    // Parents come before their children, so the larger index is never an ancestor of the smaller.
    while (a != b) (a > b ? a : b) = result_.units[std::max(a, b)].parent;
    return a;
  }

  const ModelUnits* units_;
  std::vector<std::string> unused_;  // of the next, those that no parameter has had so far
  const std::vector<std::string>& ignored_;
  std::set<const void*> kept_;  // a tied parameter is ignored if all its names are
  ParameterList result_;
  std::map<const void*, std::size_t> index_;
};

ParameterList checked(ParameterList list) {
  std::map<const void*, std::string> storages;
  for (const Parameter& p : list.parameters) {
    if (p.placement.axis != nullptr && p.placement.axis != list.tensor_axis()) {
      throw Error(fmt::format(
          "parameter '{}' is split over other ranks than those before it: a model has one tensor "
          "axis",
          p.name));
    }
    if (!p.tensor.is_contiguous()) {
      throw Error(
          fmt::format("parameter '{}' is not contiguous (strides {}): collectives would send the "
                      "wrong elements; register a contiguous() tensor, and give a convolution "
                      "inputs in channels_last if that is faster",
                      p.name, fmt::join(p.tensor.strides(), ",")));
    }
    const auto [found, is_new] =
        storages.try_emplace(p.tensor.storage().unsafeGetStorageImpl(), p.name);
    if (!is_new) {
      throw Error(
          fmt::format("parameters '{}' and '{}' are two tensors over the same memory; tie weights "
                      "by registering the same tensor twice; make a model anew whose strategy was "
                      "destroyed without release()",
                      found->second, p.name));
    }
  }
  if (list.size() == 0) throw Error("the model has no parameter that a strategy could hold");
  return list;
}

class Callback final : public torch::autograd::PostAccumulateGradHook {
 public:
  Callback(std::function<void()> function, std::unique_ptr<PostAccumulateGradHook> of_program)
      : function_(std::move(function)), of_program_(std::move(of_program)) {}
  void operator()(const at::Tensor& parameter) override {
    if (of_program_ != nullptr) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) gradient = gradient.clone();  // else it may be a part of a buffer
      (*of_program_)(parameter);
    }
    function_();
  }
  std::unique_ptr<PostAccumulateGradHook>& of_program() { return of_program_; }

 private:
  std::function<void()> function_;
  std::unique_ptr<PostAccumulateGradHook> of_program_;  // comes first; null if there is none
};

std::unique_ptr<torch::autograd::PostAccumulateGradHook>& post_hook(const at::Tensor& parameter) {
  impl::materialize_autograd_meta(parameter);
  return impl::post_acc_grad_hooks(parameter);
}

// The one without the callback around it.
std::unique_ptr<torch::autograd::PostAccumulateGradHook>& post_hook_of_program(
    const at::Tensor& parameter) {
  auto& hook = post_hook(parameter);
  auto* const callback = dynamic_cast<Callback*>(hook.get());
  return callback == nullptr ? hook : callback->of_program();
}

}  // namespace

std::string path_to(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

std::int64_t ParameterList::numel() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.numel();
  return sum;
}

std::int64_t ParameterList::bytes() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.bytes();
  return sum;
}

dist::Communicator* ParameterList::tensor_axis() const {
  for (const Parameter& p : parameters) {
    if (p.placement.axis != nullptr) return p.placement.axis;
  }
  return nullptr;
}

std::size_t ParameterList::index_of(const Unit& unit) const {
  const auto found = std::ranges::find(units, &unit, &UnitInfo::unit);
  if (found == units.end()) throw Error("a unit that is no part of this model");
  return static_cast<std::size_t>(found - units.begin());
}

bool ParameterList::has_inner(std::size_t u) const {
  // The first one inside comes next. (The root is its own parent.)
  return u + 1 < units.size() && units[u + 1].parent == u;
}

bool ParameterList::lies_within(std::size_t u, std::size_t outer) const {
  while (u != outer && u != 0) u = units[u].parent;
  return u == outer;
}

bool match_name(std::string_view path, std::string_view pattern) {
  if (pattern.empty()) return path.empty();
  const bool any = pattern[0] == '*';
  if (any && match_name(path, pattern.substr(1))) return true;
  if (path.empty() || (any ? path[0] == '.' : path[0] != pattern[0])) return false;
  return match_name(path.substr(1), any ? pattern : pattern.substr(1));
}

ParameterList list_parameters(torch::nn::Module& root, const std::vector<std::string>& ignored) {
  return checked(Lister(nullptr, ignored).list(root));
}

ParameterList list_parameters(const ModelUnits& units, const std::vector<std::string>& ignored) {
  return checked(Lister(&units, ignored).list(units.module()));
}

void set_hooks(torch::nn::Module& root, UnitHooks* hooks) {
  root.apply([&](torch::nn::Module& module) {
    if (auto* unit = dynamic_cast<Unit*>(&module)) unit->set_hooks(hooks);
  });
}

void SeededValues::fill(const Parameter& parameter, at::Tensor& out) {
  if (!parameter.initializer) {
    if (memory::has_storage(parameter.tensor)) {
      if (!out.is_same(parameter.tensor)) memory::raw(out).copy_(memory::raw(parameter.tensor));
      return;
    }
    throw Error(fmt::format("parameter '{}' has no values and no initializer to make them",
                            parameter.name));
  }
  if (!out.is_cpu()) {  // drawn on the CPU, so that they are the same on every device
    at::Tensor drawn = at::empty(out.sizes(), out.scalar_type());
    fill(parameter, drawn);
    memory::raw(out).copy_(drawn);
    return;
  }
  at::Tensor values = memory::raw(out);
  const Initializer how = *parameter.initializer;
  if (how.kind == Initializer::Kind::kConstant) {
    values.fill_(how.value);
    return;
  }
  at::Generator generator = at::detail::createCPUGenerator(seed_ ^ base::fnv1a(parameter.name));
  if (how.kind == Initializer::Kind::kNormal) {
    values.normal_(0.0, how.value, generator);
  } else {
    values.uniform_(-how.value, how.value, generator);
  }
}

void fill_part(ParameterSource& source, const Parameter& parameter, at::Tensor& out) {
  if (!parameter.placement.is_cut()) return source.fill(parameter, out);
  Parameter whole = parameter;
  whole.placement = {};
  whole.tensor = memory::without_storage(parameter.whole_sizes(), out.scalar_type());
  const memory::Charge charge(memory::Category::kCommunication);
  at::Tensor values = at::empty(whole.tensor.sizes(), out.options());
  source.fill(whole, values);
  memory::raw(out).copy_(parameter.placement.part_of(values));
}

void initialize_parameters(torch::nn::Module& root, ParameterSource& source) {
  ParameterList list = list_parameters(root);
  for (Parameter& p : list.parameters) {
    const memory::Charge charge(memory::Category::kParameters);
    memory::allocate_storage(p.tensor);
    fill_part(source, p, p.tensor);
  }
}

void on_gradient_ready(const at::Tensor& parameter, std::function<void()> callback) {
  auto hook = std::move(post_hook_of_program(parameter));
  if (callback) hook = std::make_unique<Callback>(std::move(callback), std::move(hook));
  impl::set_post_acc_grad_hooks(parameter, std::move(hook));
}

bool calls_on_gradient_ready(const at::Tensor& parameter) {
  return dynamic_cast<Callback*>(post_hook(parameter).get()) != nullptr;
}

bool has_gradient_hooks(const at::Tensor& parameter) {
  if (impl::get_autograd_meta(parameter) == nullptr) return false;
  if (!impl::hooks(parameter).empty()) return true;
  const auto accumulator = impl::try_get_grad_accumulator(parameter);
  return accumulator != nullptr && !accumulator->pre_hooks().empty();
}

bool has_post_hook(const at::Tensor& parameter) {
  return post_hook_of_program(parameter) != nullptr;
}

}  // namespace zero::nn
