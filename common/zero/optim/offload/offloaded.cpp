#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/offload/host_update.hpp>
#include <zero/optim/offload/offloaded.hpp>
#include <zero/optim/offload/tile_store.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {
namespace {

using States = std::map<std::string, at::Tensor>;

// Elements of a piece, but for the last of a parameter: its states begin at whole cache lines.
constexpr std::int64_t kGranule = 64;

std::int64_t granules(std::int64_t elements) {
  return (elements + kGranule - 1) / kGranule * kGranule;
}

struct OffloadedSlot {
  at::Tensor parameter;
  at::Tensor idle;  // without bytes: what the inner optimizer holds of it between updates
  at::Tensor held;  // what it holds now
  std::int64_t steps = 0;
  std::vector<std::pair<std::string, at::ScalarType>> kinds = {};  // of its states, once there are
  std::size_t first_tile = TileFile::kNone;                        // of those that have its pieces
  bool stale = false;                                              // since a step failed
};

OffloadedSlot idle_slot(const at::Tensor& parameter) {
  const at::Tensor idle =
      memory::without_storage(parameter.sizes(), parameter.scalar_type(), parameter.device());
  return {.parameter = parameter, .idle = idle, .held = idle};
}

// Some elements of a parameter, and where in the tile their states are.
struct Piece {
  std::size_t slot;
  std::int64_t begin;
  std::int64_t elements;
  std::int64_t offset;  // bytes
};

at::Tensor part(const at::Tensor& whole, const Piece& piece) {
  return memory::raw(whole).view({-1}).narrow(0, piece.begin, piece.elements);
}

class Offloaded final : public Optimizer {
 public:
  Offloaded(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
            const OffloadOptions& options)
      : store_(std::make_unique<TileStore>(options)) {
    for (const at::Tensor& p : parameters) slots_.add(idle_slot(p));
    inner_ = make(parameters);  // which may know them by their names
    inner_->replace([this](const at::Tensor& p) {
      const OffloadedSlot* const slot = slots_.find(p);
      return slot == nullptr ? at::Tensor() : slot->idle;
    });
    const std::string kind = inner_->settings().kind;
    if (kind != "AdamW" && kind != "AdamW with master weights") {
      throw Error(fmt::format(
          "the states of {} cannot be offloaded; those of optim::adamw() can, with or without "
          "optim::with_master_weights() inside: take it, or leave out the offload",
          kind.empty() ? "this optimizer" : kind));
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    verify_states(slots_.begin(), slots_.end());
    try {
      update();
    } catch (const std::exception& error) {
      failure_ = message_of(error);
      // First, because giving up the tiles may fail, too. What never had states has nothing to
      // load.
      for (OffloadedSlot& slot : slots_) {
        slot.stale = slot.steps > 0 || slot.parameter.grad().defined();
      }
      lay_out_anew();
      throw;
    }
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    std::unordered_map<const at::TensorImpl*, at::Tensor> idle;  // from old to new
    std::vector<std::pair<at::Tensor, States>> states;           // of parameters that stay
    for (const OffloadedSlot& slot : slots_)
      states.emplace_back(slot.parameter, state(slot.parameter));
    slots_.replace(with, [&](OffloadedSlot& slot, const at::Tensor& other) {
      at::Tensor& now = idle[slot.held.unsafeGetTensorImpl()];
      slot = other.defined() ? idle_slot(other) : OffloadedSlot{};
      now = slot.idle;
    });
    inner_->replace([&](const at::Tensor& held) {
      const auto found = idle.find(held.unsafeGetTensorImpl());
      return found == idle.end() ? held : found->second;
    });
    lay_out_anew();
    for (const auto& [parameter, of_this] : states) {
      const OffloadedSlot* slot = slots_.find(parameter);
      if (slot != nullptr && slot->steps > 0) load_state(parameter, slot->steps, of_this);
    }
  }

  States state(const at::Tensor& parameter) const override {
    const OffloadedSlot* slot = slots_.find(parameter);
    if (slot == nullptr) return {};
    verify_states(slot, slot + 1);
    if (slot->steps == 0) return {};
    States states;
    for (const auto& [name, dtype] : slot->kinds) {
      states[name] = at::empty({parameter.numel()}, parameter.options().dtype(dtype));
    }
    for_each_piece(*slot, [&](std::size_t tile, const Piece& piece) {
      for (const auto& [name, stored] : states_in(store_->read(tile), piece)) {
        states[name].narrow(0, piece.begin, piece.elements).copy_(stored);
      }
    });
    return states;
  }

  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    const OffloadedSlot* slot = slots_.find(parameter);
    if (slot == nullptr) return {};
    verify_states(slot, slot + 1);
    if (slot->steps == 0) return {};
    return {slot->kinds.begin(), slot->kinds.end()};
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const OffloadedSlot* slot = slots_.find(parameter);
    return slot == nullptr ? 0 : slot->steps;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const OffloadedSlot* slot = slots_.find(parameter);
    return slot == nullptr ? 0 : inner_->state_bytes(slot->held);
  }

  std::int64_t resident_bytes(std::int64_t bytes) const override {
    return bytes == 0 ? 0 : store_->resident_bytes();
  }

  void set_gradient_scale(double scale) override { inner_->set_gradient_scale(scale); }
  Settings settings() const override { return inner_->settings(); }

  void load_state(const at::Tensor& parameter, std::int64_t steps, const States& states) override {
    OffloadedSlot* slot = slots_.find(parameter);
    if (slot == nullptr) throw Error("state for a parameter that this optimizer does not hold");
    check_with_inner(*slot, steps, states);
    slot->stale = true;  // until all of it is there
    slot->steps = steps;
    if (steps > 0) {
      note_kinds(*slot, states);
      place(*slot);
      for_each_piece(*slot, [&](std::size_t tile, const Piece& piece) {
        for (const auto& [name, stored] : states_in(store_->change(tile), piece)) {
          stored.copy_(part(states.at(name), piece));
        }
      });
    }
    slot->stale = false;
  }

  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }
  void set_learning_rates(const std::vector<double>& rates) override {
    inner_->set_learning_rates(rates);
  }
  std::size_t group_of(const at::Tensor& parameter) const override {
    const OffloadedSlot* slot = slots_.find(parameter);
    return slot == nullptr ? 0 : inner_->group_of(slot->held);
  }

  bool is_offloaded() const override { return true; }

  OffloadTraffic offload_traffic() const override { return store_->file().traffic(); }
  void stream_offloaded() override {
    std::vector<std::size_t> tiles(pieces_.size());
    std::iota(tiles.begin(), tiles.end(), std::size_t{0});
    store_->stream(tiles, [](std::size_t, const at::Tensor&) {});
  }

 private:
  template <typename Iterator>
  void verify_states(Iterator begin, Iterator end) const {
    if (std::none_of(begin, end, [](const OffloadedSlot& slot) { return slot.stale; })) return;
    throw Error(fmt::format(
        "an update has failed, so that weights and optimizer states are partly updated: load a "
        "checkpoint. The error was: {}",
        failure_.empty() ? "loading its states failed" : failure_));
  }

  // Gives a parameter its place on the disk.
  void place(OffloadedSlot& slot) {
    if (slot.first_tile != TileFile::kNone) return;
    const std::int64_t all = slot.parameter.numel();
    const std::int64_t each = all == 0 ? 1 : inner_->state_bytes(slot.held) / all;
    std::int64_t begin = 0;
    do {
      if (pieces_.empty() || store_->room() < each * kGranule) {
        pieces_.emplace_back();
        store_->add();
      }
      const std::size_t tile = pieces_.size() - 1;
      const std::int64_t elements =
          std::min(all - begin, store_->room() / (each * kGranule) * kGranule);
      const std::int64_t offset = store_->grow(each * granules(elements));
      pieces_[tile].push_back({slots_.index_of(slot), begin, elements, offset});
      if (begin == 0) slot.first_tile = tile;
      begin += elements;
    } while (begin < all);
  }

  // Calls function(tile, piece) for each piece of a parameter that has a place.
  template <typename Function>
  void for_each_piece(const OffloadedSlot& slot, const Function& function) const {
    for (std::size_t tile = slot.first_tile; tile < pieces_.size(); ++tile) {
      const auto found = std::ranges::find(pieces_[tile], slots_.index_of(slot), &Piece::slot);
      if (found == pieces_[tile].end()) return;
      function(tile, *found);
    }
  }

  // The states of a piece among the bytes of its tile.
  States states_in(const at::Tensor& bytes, const Piece& piece) const {
    States states;
    std::int64_t offset = piece.offset;
    for (const auto& [name, dtype] : slots_[piece.slot].kinds) {
      const auto each = static_cast<std::int64_t>(c10::elementSize(dtype));
      states[name] = bytes.narrow(0, offset, each * piece.elements).view(dtype);
      offset += each * granules(piece.elements);
    }
    return states;
  }

  void update() {
    std::vector<OffloadedSlot*> due;
    for (OffloadedSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      place(slot);
      due.push_back(&slot);
    }
    std::vector<std::size_t> tiles;
    for (std::size_t tile = 0; tile < pieces_.size(); ++tile) {
      if (!due_in(tile).empty()) tiles.push_back(tile);
    }
    store_->stream(
        tiles, [this](std::size_t tile, const at::Tensor& bytes) { update(due_in(tile), bytes); });
    show({});
    for (OffloadedSlot* slot : due) ++slot->steps;
  }

  std::vector<Piece> due_in(std::size_t tile) {
    std::vector<Piece> due = pieces_[tile];
    std::erase_if(due,
                  [this](const Piece& p) { return !slots_[p.slot].parameter.grad().defined(); });
    return due;
  }

  void update(const std::vector<Piece>& due, const at::Tensor& bytes) {
    show(due);
    for (const Piece& piece : due) {
      const OffloadedSlot& slot = slots_[piece.slot];
      if (slot.steps > 0) {
        inner_->load_state(slot.held, slot.steps, states_in(bytes, piece));
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
    slot.kinds.clear();
    for (const auto& [name, state] : states) slot.kinds.emplace_back(name, state.scalar_type());
  }

  // Lets the inner optimizer hold these pieces of parameters, and nothing of the others.
  void show(const std::vector<Piece>& pieces) {
    std::unordered_map<const at::TensorImpl*, at::Tensor> next;
    for (const std::size_t i : shown_) next[slots_[i].held.unsafeGetTensorImpl()] = slots_[i].idle;
    for (const Piece& piece : pieces) {
      const OffloadedSlot& slot = slots_[piece.slot];
      next[slot.held.unsafeGetTensorImpl()] = part(slot.parameter, piece);
    }
    const auto after = [&](const at::Tensor& held) {
      const auto found = next.find(held.unsafeGetTensorImpl());
      return found == next.end() ? held : found->second;
    };
    inner_->replace(after);
    for (const std::size_t i : std::exchange(shown_, {})) slots_[i].held = after(slots_[i].held);
    for (const Piece& piece : pieces) {
      slots_[piece.slot].held = after(slots_[piece.slot].held);
      shown_.push_back(piece.slot);
    }
  }

  // Throws as the inner optimizer does for states that are not its own.
  void check_with_inner(const OffloadedSlot& slot, std::int64_t steps, const States& states) {
    const Piece some{slots_.index_of(slot), 0, std::min(slot.parameter.numel(), kGranule), 0};
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

  void lay_out_anew() {
    show({});
    store_->clear();
    pieces_.clear();
    for (OffloadedSlot& slot : slots_) slot.first_tile = TileFile::kNone;
  }

  Slots<OffloadedSlot> slots_;
  std::unique_ptr<Optimizer> inner_;
  std::unique_ptr<TileStore> store_;        // state() reads from it
  std::vector<std::vector<Piece>> pieces_;  // by tile
  std::vector<std::size_t> shown_;          // slots of which the inner optimizer holds a piece
  std::string failure_;
};

}  // namespace

OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options) {
  const std::int64_t delay_after = options.delay_after;
  const OptimizerFactory of_host =
      options.folder.empty() ? std::move(optimizer)
                             : [optimizer = std::move(optimizer), options = std::move(options)](
                                   const std::vector<at::Tensor>& parameters) {
                                 return std::make_unique<Offloaded>(optimizer, parameters, options);
                               };
  return [of_host,
          delay_after](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<Optimizer> {
    const bool one_memory = parameters.empty() || parameters.front().is_cpu();
    if (one_memory && delay_after == kNoDelay) return of_host(parameters);
    return update_on_host(of_host, parameters, delay_after);
  };
}

}  // namespace zero::optim
