#include "offloaded.hpp"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/optimizer_around.hpp>

#include "host_update.hpp"
#include "tile_file.hpp"

namespace zero::optim {
namespace {

using States = std::map<std::string, at::Tensor>;

// Elements of a piece, but for the last of a parameter: its states begin at whole cache lines.
constexpr std::int64_t kGranule = 64;

// Some elements of a parameter, and the tile and its bytes where their states are.
struct Piece {
  std::size_t slot;
  std::int64_t begin;
  std::int64_t elements;
  std::size_t tile = 0;
  std::int64_t offset = 0;
};

struct OffloadedSlot {
  at::Tensor parameter;
  at::Tensor held;  // by the inner optimizer, now
  at::Tensor idle;  // without bytes: the same between updates
  std::int64_t steps = 0;
  std::map<std::string, at::ScalarType> kinds = {};  // of its states, once there are
  std::vector<Piece> pieces = {};                    // of its states; one at least, once there are
  bool lost = false;                                 // since an update or a load failed
};

OffloadedSlot idle_slot(const at::Tensor& parameter) {
  const at::Tensor idle =
      memory::without_storage(parameter.sizes(), parameter.scalar_type(), parameter.device());
  return {.parameter = parameter, .held = idle, .idle = idle};
}

at::Tensor part(const at::Tensor& whole, const Piece& piece) {
  return memory::raw(whole).view({-1}).narrow(0, piece.begin, piece.elements);
}

class Offloaded final : public OptimizerAround<OffloadedSlot> {
 public:
  Offloaded(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
            const OffloadOptions& options)
      : OptimizerAround(make, parameters, &idle_slot), file_(options) {
    if (!inner_->can_offload()) {
      const std::string kind = inner_->settings().kind;
      throw Error(fmt::format(
          "the states of {} cannot be offloaded; those of optim::adamw() can, with or without "
          "optim::with_master_weights() inside: take it, or leave out the offload",
          kind.empty() ? "this optimizer" : kind));
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    for (const OffloadedSlot& slot : slots_) verify_states(slot);
    or_lose_all([this] { update(); });
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    if (file_.size() > 0) {
      throw Error(
          "an optimizer with states on a disk cannot take or forget parameters any more: call "
          "replace() or narrow() before the first step() and load_state()");
    }
    OptimizerAround::replace(with);
  }

  States state(const at::Tensor& parameter) const override {
    States states;
    for (const auto& [name, dtype] : state_types(parameter)) {
      states[name] = at::empty({parameter.numel()}, parameter.options().dtype(dtype));
    }
    if (states.empty()) return states;
    for (const Piece& piece : slots_.of(parameter).pieces) {
      for (const auto& [name, stored] : states_in(file_.read(piece.tile), piece)) {
        states[name].narrow(0, piece.begin, piece.elements).copy_(stored);
      }
    }
    return states;
  }

  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    const OffloadedSlot& slot = slots_.of(parameter);
    verify_states(slot);
    if (slot.steps == 0) return {};
    return slot.kinds;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    return slots_.of(parameter).steps;
  }

  std::int64_t resident_bytes(std::int64_t bytes) const override {
    return bytes == 0 ? 0 : file_.resident_bytes();
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps, const States& states) override {
    OffloadedSlot* slot = slots_.find(parameter);
    if (slot == nullptr) throw Error("state for a parameter that this optimizer does not hold");
    check_with_inner(*slot, steps, states);
    slot->steps = steps;
    if (steps > 0) or_lose_all([&] { write_states(*slot, states); });
    slot->lost = false;
  }

  void take_exact(const at::Tensor&, const at::Tensor&) override {
    if (!inner_->keeps_exact()) return;
    throw Error(
        "master weights on a disk cannot take values before they are rounded to parameters of 2 "
        "bytes: load them into an engine without offload, save a checkpoint, and load that");
  }

  bool is_offloaded() const override { return true; }

  OffloadTraffic offload_traffic() const override { return file_.traffic(); }
  void stream_offloaded() override {
    std::vector<std::size_t> tiles(file_.size());
    std::iota(tiles.begin(), tiles.end(), std::size_t{0});
    file_.stream(tiles, [](std::size_t, const at::Tensor&) {});
  }

 private:
  static void verify_states(const OffloadedSlot& slot) {
    if (slot.lost)
      throw Error("optimizer states are lost since an update or a load failed: load a checkpoint");
  }

  // Does `work`. If it fails, states are partly updated: none may be used, until all are loaded.
  void or_lose_all(const auto& work) {
    try {
      work();
    } catch (...) {
      for (OffloadedSlot& slot : slots_) slot.lost = slot.steps > 0;
      show({});
      file_.forget();
      throw;
    }
  }

  void write_states(OffloadedSlot& slot, const States& states) {
    note_kinds(slot, states);
    place(slot);
    for (const Piece& piece : slot.pieces) {
      for (const auto& [name, stored] :
           states_in(file_.read(piece.tile, /*to_change=*/true), piece)) {
        stored.copy_(part(states.at(name), piece));
      }
    }
  }

  // Gives a parameter its place on the disk.
  void place(OffloadedSlot& slot) {
    if (!slot.pieces.empty()) return;
    const std::int64_t all = slot.parameter.numel();
    const std::int64_t each = all == 0 ? 1 : inner_->state_bytes(slot.held) / all;
    std::int64_t begin = 0;
    do {
      if (file_.size() == 0 || file_.room() < each * kGranule) file_.add();
      const std::int64_t elements =
          std::min(all - begin, file_.room() / (each * kGranule) * kGranule);
      const std::int64_t offset = file_.grow(each * at::round_up(elements, kGranule));
      slot.pieces.push_back({slots_.index_of(slot), begin, elements, file_.size() - 1, offset});
      begin += elements;
    } while (begin < all);
  }

  // The states of a piece among the bytes of its tile.
  States states_in(const at::Tensor& bytes, const Piece& piece) const {
    States states;
    std::int64_t offset = piece.offset;
    for (const auto& [name, dtype] : slots_[piece.slot].kinds) {
      const auto each = static_cast<std::int64_t>(c10::elementSize(dtype));
      states[name] = bytes.narrow(0, offset, each * piece.elements).view(dtype);
      offset += each * at::round_up(piece.elements, kGranule);
    }
    return states;
  }

  void update() {
    std::map<std::size_t, std::vector<Piece>> due;  // by tile
    for (OffloadedSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      ++slot.steps;
      place(slot);
      for (const Piece& piece : slot.pieces) due[piece.tile].push_back(piece);
    }
    std::vector<std::size_t> tiles;
    for (const auto& [tile, pieces] : due) tiles.push_back(tile);
    file_.stream(tiles,
                 [&](std::size_t tile, const at::Tensor& bytes) { update(due.at(tile), bytes); });
    show({});
  }

  void update(const std::vector<Piece>& due, const at::Tensor& bytes) {
    show(due);
    for (const Piece& piece : due) {
      const OffloadedSlot& slot = slots_[piece.slot];
      if (slot.steps > 1) {
        inner_->load_state(slot.held, slot.steps - 1, states_in(bytes, piece));
      }
      slot.held.mutable_grad() = part(slot.parameter.grad(), piece);
    }
    inner_->step();
    for (const Piece& piece : due) {
      OffloadedSlot& slot = slots_[piece.slot];
      const States updated = inner_->state(slot.held);
      if (slot.kinds.empty()) note_kinds(slot, updated);
      for (const auto& [name, stored] : states_in(bytes, piece)) {
        if (!stored.is_alias_of(updated.at(name))) stored.copy_(updated.at(name));
      }
    }
  }

  static void note_kinds(OffloadedSlot& slot, const States& states) {
    for (const auto& [name, state] : states) slot.kinds[name] = state.scalar_type();
  }

  // Lets the inner optimizer hold these pieces of parameters, and nothing of the others.
  void show(const std::vector<Piece>& pieces) {
    std::vector<at::Tensor> shown;
    for (const OffloadedSlot& slot : slots_) shown.push_back(slot.idle);
    for (const Piece& piece : pieces) {
      shown[piece.slot] = part(slots_[piece.slot].parameter, piece);
    }
    hold(shown);
  }

  // Throws as the inner optimizer does for states that are not its own.
  void check_with_inner(const OffloadedSlot& slot, std::int64_t steps, const States& states) {
    const std::int64_t elements = std::min(slot.parameter.numel(), kGranule);
    const Piece some{.slot = slots_.index_of(slot), .begin = 0, .elements = elements};
    States of_some;
    for (const auto& [name, state] : states) {
      if (state.dim() != 1 || state.numel() != slot.parameter.numel()) {
        throw Error(fmt::format("state {} has {} elements; the parameter has {}", name,
                                state.numel(), slot.parameter.numel()));
      }
      of_some[name] = part(state, some);
    }
    show({some});
    const auto end = c10::make_scope_exit([this] { show({}); });
    inner_->load_state(slot.held, steps, of_some);
  }

  mutable TileFile file_;  // state() reads from it
};

}  // namespace

OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options) {
  return [optimizer = std::move(optimizer), options = std::move(options)](
             const std::vector<at::Tensor>& parameters) -> std::unique_ptr<Optimizer> {
    const auto of_host = [&](const std::vector<at::Tensor>& all) -> std::unique_ptr<Optimizer> {
      if (options.folder.empty()) return optimizer(all);
      return std::make_unique<Offloaded>(optimizer, all, options);
    };
    const bool one_memory = parameters.empty() || parameters.front().is_cpu();
    return one_memory ? of_host(parameters) : update_on_host(of_host, parameters);
  };
}

}  // namespace zero::optim
