#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/held_model.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero::train {
namespace {

// Throws zero::Error if the mesh does not have the axes that the model is split over.
void verify_axes(const dist::Mesh& mesh, const nn::ParameterList& list, bool is_stage) {
  if (list.tensor_axis() != nullptr && list.tensor_axis() != &mesh.tensor()) {
    throw Error(
        "the model is split over a tensor axis that the mesh does not have: pass the mesh that has "
        "the axis \"tensor\" of the model's nn::TensorParallel");
  }
  if (is_stage != (mesh.pipeline().size() > 1)) {
    throw Error(fmt::format(
        "{}, on a mesh of {}: a stage of a pipeline needs an axis \"pipeline\" that leads to the "
        "others, and a whole model must not have one",
        is_stage ? "the model is a stage" : "the model is whole", mesh.text()));
  }
  const auto trains = [](const nn::Parameter& p) { return p.tensor.requires_grad(); };
  if (is_stage && std::ranges::none_of(list.parameters, trains)) {
    throw Error(
        fmt::format("all {} parameters of a stage of a pipeline are frozen, '{}' first: leave one "
                    "of each stage trainable, or train without a pipeline",
                    list.size(), list.parameters.front().name));
  }
  if (mesh.data().size() * mesh.tensor().size() * mesh.pipeline().size() != mesh.world().size()) {
    throw Error(fmt::format("a mesh of {}: its axes must be \"data\", \"tensor\" and \"pipeline\"",
                            mesh.text()));
  }
}

// Throws zero::Error for an embedding that makes sparse gradients of a parameter.
void verify_dense(const nn::ParameterList& list, const torch::nn::Module& model) {
  const auto verify = [&](const std::string& path, const auto* embedding) {
    if (embedding == nullptr || !embedding->options.sparse()) return;
    const auto found = std::ranges::find_if(list.parameters, [&](const nn::Parameter& p) {
      return p.tensor.is_same(embedding->weight) && p.tensor.requires_grad();
    });
    if (found == list.parameters.end()) return;
    throw Error(fmt::format(
        "parameter '{}' would get sparse gradients, which are not averaged: make the embedding "
        "'{}' with sparse(false), or leave the parameter to the program (EngineConfig::ignored)",
        found->name, path));
  };
  model.apply([&](const std::string& path, const torch::nn::Module& module) {
    verify(path, dynamic_cast<const torch::nn::EmbeddingImpl*>(&module));
    verify(path, dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module));
  });
}

// Throws zero::Error for a tensor of the model that can only be read.
void verify_not_of_inference(const nn::ParameterList& list, const torch::nn::Module& model) {
  std::string wrong = under_inference_mode("a strategy is made");
  const auto check = [&wrong](const char* what, const std::string& name, const at::Tensor& tensor) {
    if (!wrong.empty() || !tensor.is_inference()) return;
    wrong = fmt::format("{} '{}' was made under c10::InferenceMode: make the model outside of it",
                        what, name);
  };
  for (const nn::Parameter& p : list.parameters) check("parameter", p.name, p.tensor);
  for (const auto& buffer : model.named_buffers()) check("buffer", buffer.key(), buffer.value());
  if (!wrong.empty()) throw Error(wrong);
}

// Throws zero::Error for what no strategy can train.
void verify_trainable(const nn::ParameterList& list, const torch::nn::Module& model) {
  verify_dense(list, model);
  std::map<const void*, std::string> storages;
  for (const nn::Parameter& p : list.parameters) {
    const at::ScalarType type = p.tensor.scalar_type();
    if (p.tensor.requires_grad() && type != at::kFloat && type != at::kDouble &&
        type != at::kBFloat16 && type != at::kHalf) {
      throw Error(fmt::format(
          "parameter '{}' is {}: only gradients of float32, float64, bfloat16 and float16 are "
          "averaged{}",
          p.name, c10::toString(type),
          p.tensor.is_complex() ? "; register at::view_as_real() of it, and use "
                                  "at::view_as_complex() of that"
                                : ""));
    }
    storages[p.tensor.storage().unsafeGetStorageImpl()] = p.name;
  }
  for (const auto& buffer : model.named_buffers()) {
    if (!buffer.value().has_storage()) continue;
    const auto found = storages.find(buffer.value().storage().unsafeGetStorageImpl());
    if (found == storages.end()) continue;
    throw Error(fmt::format(
        "buffer '{}' uses the memory of parameter '{}', which gets other memory from a strategy: "
        "make the buffer a clone(), or compute it from the parameter where it is used",
        buffer.key(), found->second));
  }
}

// Throws zero::Error if a parameter has no bytes, of a model that gives all ranks its first values.
void verify_values(const nn::ParameterList& list) {
  for (const nn::Parameter& p : list.parameters) {
    if (memory::has_storage(p.tensor)) continue;
    throw Error(fmt::format(
        "parameter '{}' has no values: pass a nn::ParameterSource, as for a model that is built "
        "without values; if a strategy that had it was destroyed without release(), make the model "
        "anew",
        p.name));
  }
}

// Throws zero::Error if parameters cannot be left to the program.
void verify_ignored(const nn::ParameterList& list, const StrategyArguments& arguments,
                    bool is_stage) {
  if (is_stage) {
    throw Error("parameters of a stage of a pipeline cannot be ignored");
  }
  for (const auto& item : arguments.module.named_parameters()) {
    const auto is_it = [&](const nn::Parameter& p) { return p.tensor.is_same(item.value()); };
    if (memory::has_storage(item.value()) || std::ranges::any_of(list.parameters, is_it)) continue;
    throw Error(fmt::format(
        "the ignored parameter '{}' has no values: build the model without nn::defer(), because "
        "only the program gives it values",
        item.key()));
  }
}

std::mutex held_mutex;
std::vector<const HeldModel*> held;  // all that live; guarded by it

}  // namespace

std::string under_inference_mode(const std::string& call) {
  if (!c10::InferenceMode::is_enabled()) return "";
  return call +
         " under c10::InferenceMode, where tensors are made that can be neither changed nor "
         "differentiated afterwards: do it outside of that guard";
}

// Throws zero::Error if a strategy has the model or a part of it.
void HeldModel::verify_not_held(const torch::nn::Module& module) {
  std::set<const void*> mine;
  for (const at::Tensor& p : module.parameters()) mine.insert(p.unsafeGetTensorImpl());
  const std::lock_guard lock(held_mutex);
  for (const HeldModel* const model : held) {
    for (const nn::Parameter& p : model->list_.parameters) {
      if (model->released_ || !mine.contains(p.tensor.unsafeGetTensorImpl())) continue;
      throw Error(
          fmt::format("the model is held by {}: a strategy gives its model back by release(), "
                      "called on all ranks; else make the model anew",
                      model->mode_));
    }
  }
}

nn::ParameterList HeldModel::free_parameters(const StrategyArguments& arguments,
                                             std::optional<nn::ModelUnits>& units) {
  std::string wrong;
  try {
    verify_not_held(arguments.module);
    units.emplace(arguments.module, arguments.units);
    nn::ParameterList list = nn::list_parameters(*units, arguments.ignored);
    verify_not_of_inference(list, arguments.module);
    verify_trainable(list, arguments.module);
    const bool is_stage = units->whole_model() != nullptr;
    verify_axes(arguments.mesh, list, is_stage);
    if (!arguments.ignored.empty()) verify_ignored(list, arguments, is_stage);
    if (arguments.values == nullptr && arguments.mesh.data().rank() == 0) verify_values(list);
    return list;
  } catch (const std::exception& error) {  // the rule may throw any
    wrong = message_of(error);
  }
  // A rank whose model is right sends another text in the constructor's comparison, so that all
  // ranks throw.
  arguments.mesh.verify_same_at({"pipeline"}, kModelOrStrategy,
                                [&]() -> std::string { throw Error(wrong); });
  throw Error(wrong);
}

HeldModel::HeldModel(const StrategyArguments& arguments, const nn::ParameterList& list,
                     const std::function<void()>& before_read)
    : list_(list),
      mode_(arguments.mode.empty() ? "a strategy" : arguments.mode),
      ranks_(arguments.mesh.world().root()),
      before_read_(before_read) {
  for (const nn::Parameter& p : list_.parameters) {
    origins_.emplace_back(p.tensor);
    had_storage_.push_back(memory::has_storage(p.tensor));
  }
  const std::lock_guard lock(held_mutex);
  held.push_back(this);
}

HeldModel::~HeldModel() {
  {
    const std::lock_guard lock(held_mutex);
    std::erase(held, this);
  }
  if (released_) return;
  if (is_whole()) return;
  for (const nn::Parameter& p : list_.parameters) {
    // The program may have put anything there by set_data().
    if (!memory::is_released(p.tensor) || !p.tensor.is_contiguous()) continue;
    memory::separate_storage(p.tensor, read_without_holder(p.name, mode_));
  }
}

// True if every parameter is whole in storage of its own, or still as the strategy got it, because
// the constructor of the chapter's class threw early.
bool HeldModel::is_whole() const {
  bool untouched = true;
  bool whole = true;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor& p = list_.parameters[i].tensor;
    const bool has_storage = memory::has_storage(p);
    untouched = untouched && Window(p) == origins_[i] && has_storage == had_storage_[i];
    whole = whole && has_storage && p.storage().nbytes() == p.nbytes();
  }
  return whole || untouched;
}

void HeldModel::finish_others() const {
  std::vector<const HeldModel*> others;
  {
    const std::lock_guard lock(held_mutex);
    for (const HeldModel* const model : held) {
      if (model != this && &model->ranks_ == &ranks_) others.push_back(model);
    }
  }
  for (const HeldModel* const model : others) model->before_read_();
}

void HeldModel::note_storages() {
  for (const nn::Parameter& p : list_.parameters) windows_.emplace_back(p.tensor);
}

HeldModel::Window::Window(const at::Tensor& tensor)
    : storage(tensor.storage().unsafeGetStorageImpl()),
      offset(tensor.storage_offset()),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()) {}

void HeldModel::verify_not_released() const {
  if (released_) throw Error(fmt::format("{} has released its model: make a new one", mode_));
}

void HeldModel::verify_storages() const {
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const nn::Parameter& p = list_.parameters[i];
    if (windows_[i] == Window(p.tensor)) continue;
    throw Error(fmt::format(
        "parameter '{}' has other memory than {} gave it: a part of the model was loaded, cast or "
        "moved since, by load(), to() or set_data(); do that before the strategy is made, or after "
        "its release()",
        p.name, mode_));
  }
}

void HeldModel::release(const std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor& parameter = list_.parameters[i].tensor;
    const at::Storage before = parameter.storage();
    memory::place(parameter, values[i], 0);
    memory::abandon(before, fmt::format("this tensor shares the memory that parameters had while "
                                        "{} had the model: read the parameter itself",
                                        mode_));
  }
  released_ = true;
}

}  // namespace zero::train
