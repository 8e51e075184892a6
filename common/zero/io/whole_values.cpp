#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/safetensors/format.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::io {
namespace {

// Where a parameter of the whole model is.
struct Place {
  std::optional<std::size_t> index;  // in this rank's list
  int stage = 0;                     // that trains it
};

std::vector<Place> places_in(const train::Strategy& strategy) {
  const train::StageOfModel& stage = strategy.stage_of_model();
  std::vector<Place> places(stage.whole().size());
  std::vector<double> has(places.size(), 0);
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (stage.is_copy(i)) continue;
    places[stage.place(i)].index = i;
    has[stage.place(i)] = 1;
  }
  const std::vector<double> all = dist::all_gather_scalars(strategy.mesh().pipeline(), has);
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k] != 0) places[k % has.size()].stage = static_cast<int>(k / has.size());
  }
  return places;
}

// Parameter `p` of the whole model, from the stage that has it as `whole`; undefined on ranks that
// do not get it.
at::Tensor across_stages(const train::Strategy& strategy, WholeOn ranks, const nn::Parameter& p,
                         int stage, at::Tensor whole) {
  dist::Communicator& pipeline = strategy.mesh().pipeline();
  const bool everywhere = ranks == WholeOn::kAllRanks;
  if (pipeline.size() == 1 || (!everywhere && stage == 0)) return whole;
  if (!everywhere && strategy.mesh().tensor().rank() != 0) return {};
  if (!whole.defined() && (everywhere || pipeline.rank() == 0)) {
    const memory::Charge charge(memory::Category::kCommunication);
    const at::Device device = strategy.list().parameters.front().tensor.device();
    whole = at::empty(p.whole_sizes(), p.tensor.options().device(device));
  }
  if (everywhere) {
    pipeline.broadcast(whole, stage, dist::Purpose::kParameter).wait();
  } else if (pipeline.rank() == stage) {
    pipeline.send(whole, 0, dist::Purpose::kParameter).wait();
  } else if (pipeline.rank() == 0) {
    pipeline.recv(whole, stage, dist::Purpose::kParameter).wait();
  }
  pipeline.synchronize();  // the host is about to read
  return whole;
}

}  // namespace

void whole_values(train::Strategy& strategy, WholeOn ranks,
                  const std::function<void(std::size_t, const at::Tensor&)>& visit) {
  const bool everywhere = ranks == WholeOn::kAllRanks;
  const bool gets = everywhere || strategy.mesh().world().rank() == 0;
  const nn::ParameterList& model = strategy.stage_of_model().whole();
  const std::vector<Place> places = places_in(strategy);
  std::optional<train::UnshardedParameters> unsharded;
  std::size_t unit = 0;
  for (const nn::UnitInfo& part : model.units) {
    for (const std::size_t g : part.parameters) {
      at::Tensor whole;
      if (const auto i = places[g].index) {
        const nn::Parameter& p = strategy.list().parameters[*i];
        if (!unsharded || unit != p.unit) {
          unsharded.reset();
          unsharded.emplace(strategy, unit = p.unit);
        }
        // The tensor axis of rank 0 has the same as the others.
        if (everywhere || strategy.communicator().rank() == 0) {
          whole = p.placement.whole_of(memory::raw(p.tensor));
        }
      }
      if (!everywhere && strategy.communicator().rank() != 0) continue;
      whole = across_stages(strategy, ranks, model.parameters[g], places[g].stage, whole);
      if (gets) visit(g, whole);
    }
    // No rank waits for longer than one unit takes to be read.
    if (strategy.mesh().pipeline().size() > 1) strategy.mesh().world().barrier();
  }
}

train::ParameterShard flat(const train::ParameterShard& shard) {
  if (!shard.tensor.defined()) return {};
  return {memory::raw(shard.tensor).view({-1}), shard.begin};
}

safetensors::NamedTensors buffers_of(train::Strategy& strategy) {
  safetensors::NamedTensors all;
  for (const auto& b : strategy.module().named_buffers()) {
    all.emplace_back(b.key(), memory::raw(b.value()));
  }
  return all;
}

std::vector<safetensors::Spec> specs_of(train::Strategy& strategy) {
  std::vector<safetensors::Spec> specs = specs_of(strategy.stage_of_model().whole());
  const auto buffers = safetensors::specs_of(buffers_of(strategy), "the model");
  specs.insert(specs.end(), buffers.begin(), buffers.end());
  return specs;
}

void check_weights(train::Strategy& strategy) {
  strategy.verify_weights();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    strategy.bring(i);
    const at::Tensor held = strategy.placement(i).kept.tensor;
    if (!held.defined() || held.numel() == 0 || !held.is_floating_point()) continue;
    if (at::isfinite(held).all().item<bool>()) continue;
    throw Error(
        fmt::format("parameter '{}' is infinite or NaN in places: training cannot resume from "
                    "it (a lower learning rate or clipping may help)",
                    strategy.list().parameters[i].name));
  }
}

}  // namespace zero::io
