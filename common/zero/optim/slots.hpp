#pragma once

// For optimizers: what an optimizer keeps for each of its parameters.

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
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

  /// The slot of a parameter; an empty one if there is none.
  const Slot& of(const at::Tensor& parameter) const {
    static const Slot none{};
    const Slot* const found = find(parameter);
    return found == nullptr ? none : *found;
  }

  /// Those for which `is_one(slot)` is true.
  template <typename Predicate>
  std::vector<Slot*> that(const Predicate& is_one) {
    std::vector<Slot*> found;
    for (Slot& slot : slots_) {
      if (is_one(slot)) found.push_back(&slot);
    }
    return found;
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
  auto begin() { return slots_.begin(); }
  auto end() { return slots_.end(); }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

 private:
  void note(std::size_t i) { index_.emplace(slots_[i].parameter.unsafeGetTensorImpl(), i); }

  std::vector<Slot> slots_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;
};

/// Slots in batches, in order. A batch has at most 1 / `batches` of all their elements, or one
/// larger parameter; so there are at most 2 * batches + 1.
template <typename Slot>
std::vector<std::vector<Slot*>> batches_of(const std::vector<Slot*>& slots, std::int64_t batches) {
  std::int64_t all = 0;
  for (const Slot* slot : slots) all += slot->parameter.numel();
  std::vector<std::vector<Slot*>> result;
  std::int64_t elements = 0;  // of the last batch
  for (Slot* slot : slots) {
    elements += slot->parameter.numel();
    if (result.empty() || elements > all / batches) {
      result.emplace_back();
      elements = slot->parameter.numel();
    }
    result.back().push_back(slot);
  }
  return result;
}

}  // namespace zero::optim
