#pragma once

// Private to zero/optim: what an optimizer keeps for each of its parameters.

#include <torch/types.h>

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zero::optim {

/// Slots (structs with a member `parameter`) in the order of an optimizer's parameters. A parameter
/// finds its slot by a hash and not by a search, so a checkpoint, which looks up every parameter,
/// takes linear time.
template <typename Slot>
class Slots {
 public:
  void add(Slot slot) {
    slots_.push_back(std::move(slot));
    note(slots_.size() - 1);
  }

  /// Null if the tensor is not a parameter of this optimizer.
  const Slot* find(const at::Tensor& parameter) const {
    const auto found = index_.find(parameter.unsafeGetTensorImpl());
    return found == index_.end() ? nullptr : &slots_[found->second];
  }
  Slot* find(const at::Tensor& parameter) {
    return const_cast<Slot*>(std::as_const(*this).find(parameter));
  }

  /// Optimizer::replace(): calls `with` once for each parameter, and `put(slot, other)` if it
  /// returned another tensor. Removes slots whose parameter is undefined after that.
  template <typename With, typename Put>
  void replace(const With& with, const Put& put) {
    for (Slot& slot : slots_) {
      const at::Tensor other = with(slot.parameter);
      if (!other.is_same(slot.parameter)) put(slot, other);
    }
    std::erase_if(slots_, [](const Slot& slot) { return !slot.parameter.defined(); });
    index_.clear();
    for (std::size_t i = 0; i < slots_.size(); ++i) note(i);
  }

  /// By its place in the order.
  Slot& operator[](std::size_t i) { return slots_[i]; }
  const Slot& operator[](std::size_t i) const { return slots_[i]; }
  std::size_t index_of(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  bool empty() const { return slots_.empty(); }
  auto begin() { return slots_.begin(); }
  auto end() { return slots_.end(); }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

 private:
  void note(std::size_t i) { index_.emplace(slots_[i].parameter.unsafeGetTensorImpl(), i); }

  std::vector<Slot> slots_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;
};

}  // namespace zero::optim
