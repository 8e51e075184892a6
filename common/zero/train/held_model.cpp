#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/distributed/rank_grid.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/held_model.hpp>

namespace zero::train {
namespace {

// ParameterList::tensor_axis() of a model whose parameters cannot be listed, because a strategy
// holds them.
dist::Communicator* tensor_axis(torch::nn::Module& model) {
  const auto of = [](torch::nn::Module& module) -> dist::Communicator* {
    const auto* layer = dynamic_cast<const nn::Layer*>(&module);
    if (layer == nullptr) return nullptr;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (auto* axis = layer->placement(item.key()).axis; axis != nullptr) return axis;
    }
    return nullptr;
  };
  if (dist::Communicator* axis = of(model); axis != nullptr) return axis;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (dist::Communicator* axis = of(*module); axis != nullptr) return axis;
  }
  return nullptr;
}

}  // namespace

nn::ParameterList HeldModel::free_parameters(const StrategyArguments& arguments,
                                             nn::Granularity granularity) {
  const std::string holder = nn::holder_of(arguments.model);
  if (holder.empty()) return nn::list_parameters(arguments.model, granularity);
  const std::string said = fmt::format("the model is held by {}", holder);
  // Ranks where the model is free send another text in the constructor's comparison, so this throws
  // on all ranks.
  dist::RankGrid({&arguments.communicator, tensor_axis(arguments.model)})
      .verify_same_on_all_ranks(kModelOrStrategy, said);
  throw Error(
      fmt::format("{}: a strategy gives its model back by release(), called on all ranks; "
                  "else make the model anew",
                  said));
}

HeldModel::HeldModel(const StrategyArguments& arguments, const nn::ParameterList& list,
                     const std::function<void()>& before_read)
    : model_(arguments.model),
      list_(list),
      mode_(arguments.mode.empty() ? "a strategy" : arguments.mode) {
  for (const nn::Parameter& p : list_.parameters) origins_.push_back(storage_of(p.tensor));
  nn::set_holder(model_, mode_, before_read);
}

HeldModel::~HeldModel() {
  if (released_) return;
  nn::set_holder(model_, is_whole() ? "" : mode_ + ", which was destroyed without release()");
}

HeldModel::Storage HeldModel::storage_of(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), memory::has_storage(tensor)};
}

// True if every parameter is whole in storage of its own, or still as the strategy got it, because
// the constructor of the chapter's class threw early.
bool HeldModel::is_whole() const {
  bool untouched = true;
  bool whole = true;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor& p = list_.parameters[i].tensor;
    const Storage now = storage_of(p);
    untouched =
        untouched && now.address == origins_[i].address && now.has_bytes == origins_[i].has_bytes;
    whole = whole && now.has_bytes && p.storage().nbytes() == p.nbytes();
  }
  return whole || untouched;
}

void HeldModel::note_storages() {
  for (const nn::Parameter& p : list_.parameters) {
    storages_.push_back(storage_of(p.tensor).address);
  }
}

void HeldModel::verify_not_released() const {
  if (released_) throw Error(fmt::format("{} has released its model: make a new one", mode_));
}

void HeldModel::verify_storages() const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const nn::Parameter& p = list_.parameters[i];
    if (storages_[i] == storage_of(p.tensor).address) continue;
    throw Error(fmt::format(
        "parameter '{}' has other memory than {} gave it: a part of the model was loaded, cast or "
        "moved since, by load(), to() or set_data(); do that before the strategy is made, or after "
        "its release()",
        p.name, mode_));
  }
}

void HeldModel::release(const std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    memory::place(list_.parameters[i].tensor, values[i], 0);
  }
  nn::set_holder(model_, "");
  released_ = true;
}

}  // namespace zero::train
