#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/layer.hpp>

namespace zero::nn {
namespace {
constexpr const char* kCastOrMove =
    "cast or move a model before the strategy is made, or after its release()";
}  // namespace

std::optional<Initializer> Layer::initializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  if (found == initializers_.end()) return std::nullopt;
  return found->second;
}

TensorPlacement Layer::placement(const std::string& name) const {
  const auto found = placements_.find(name);
  return found == placements_.end() ? TensorPlacement() : found->second;
}

// While one lives, the modules of `root` hold copies of their parameters. The originals may be
// windows of a buffer and change with the next step.
class Layer::Copies {
 public:
  explicit Copies(const Layer& root) {
    if (active) return;              // an outer module has copied already
    copy(const_cast<Layer&>(root));  // the destructor restores it
    for (const auto& module : root.modules(/*include_self=*/false)) copy(*module);
    outermost_ = active = true;
    exchange();
  }
  ~Copies() {
    if (!outermost_) return;
    exchange();
    active = false;
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

 private:
  void copy(Module& module) {
    for (auto& item : module.*(&Layer::parameters_)) {
      at::Tensor& parameter = item.value();
      at::Tensor& copied = copies_[parameter.unsafeGetTensorImpl()];  // tied: one copy
      if (!copied.defined()) {
        copied = memory::raw(parameter).clone().set_requires_grad(parameter.requires_grad());
      }
      others_[&parameter] = copied;
    }
  }
  void exchange() {
    for (auto& [place, other] : others_) std::swap(*place, other);
  }

  static thread_local bool active;
  bool outermost_ = false;
  std::map<const void*, at::Tensor> copies_;
  std::map<at::Tensor*, at::Tensor> others_;
};

thread_local bool Layer::Copies::active = false;

void Layer::check_not_taken(const char* function, const char* instead) const {
  if (holder_.empty()) return;
  throw Error(fmt::format("{} on {} while {} has it: {}", function, name(), holder_, instead));
}

void Layer::check_whole() const {
  for (const auto& item : named_parameters()) {
    if (!memory::is_released(item.value())) continue;
    if (holder_.empty()) {
      throw Error(fmt::format(
          "save() on {}: parameter '{}' has no values yet; a strategy gives it some, or "
          "nn::initialize_parameters()",
          name(), item.key()));
    }
    throw Error(fmt::format(
        "save() on {} while {} has it: parameter '{}' is not whole on this rank; call release() "
        "first, or hold train::UnshardedParameters of every unit, on all ranks",
        name(), holder_, item.key()));
  }
}

void Layer::save(torch::serialize::OutputArchive& archive) const {
  if (before_read_) before_read_();
  check_whole();
  if (holder_.empty()) return Module::save(archive);
  const Copies copies(*this);
  Module::save(archive);
}

void Layer::load(torch::serialize::InputArchive& archive) {
  check_not_taken("load()",
                  "load before the strategy is made, which gives all ranks the values of rank 0, "
                  "or after its release(); Engine::load() takes a checkpoint");
  Module::load(archive);
}

std::shared_ptr<torch::nn::Module> Layer::clone(const std::optional<torch::Device>&) const {
  throw Error(
      fmt::format("clone() on {}: construct a new module the same way, and give it the values with "
                  "torch::save() and torch::load()",
                  name()));
}

void Layer::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  check_not_taken("to()", kCastOrMove);
  Module::to(device, dtype, non_blocking);
}

void Layer::to(torch::Dtype dtype, bool non_blocking) {
  check_not_taken("to()", kCastOrMove);
  Module::to(dtype, non_blocking);
}

void Layer::to(torch::Device device, bool non_blocking) {
  check_not_taken("to()", kCastOrMove);
  Module::to(device, non_blocking);
}

at::Tensor Layer::add_parameter(const std::string& name, at::IntArrayRef sizes,
                                Initializer initializer, at::ScalarType dtype,
                                const TensorPlacement& placement) {
  at::Tensor tensor = memory::without_storage(placement.part_sizes(sizes, name), dtype);
  if (!detail::is_deferring()) {
    const memory::Charge charge(memory::Category::kParameters);
    memory::allocate_storage(tensor);
  }
  initializers_[name] = initializer;
  if (placement.axis != nullptr) placements_[name] = placement;
  return register_parameter(name, tensor, /*requires_grad=*/true);
}

}  // namespace zero::nn
