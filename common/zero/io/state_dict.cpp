#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/safetensors/format.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::io {
namespace {

using safetensors::NamedTensors;
using safetensors::Spec;

at::Tensor copy_of(const at::Tensor& tensor) {
  return memory::raw(tensor).cpu().clone(at::MemoryFormat::Contiguous);
}

// Weights on rank 0.
struct Source {
  std::vector<Spec> specs;
  std::function<void(const std::string& name, const at::Tensor& out)> read;
};

Source source_of(const NamedTensors& weights) {
  return {safetensors::specs_of(weights, "these weights"),
          [&weights](const std::string& name, const auto& out) {
            const auto is_it = [&](const auto& entry) { return entry.first == name; };
            out.copy_(std::ranges::find_if(weights, is_it)->second);
          }};
}

Source source_of(const safetensors::Folder& folder) {
  Source source{{}, [folder](const auto& name, const auto& out) { folder.read_into(name, out); }};
  for (const std::string& name : folder.names()) source.specs.push_back(folder.info(name));
  return source;
}

// Writes the values of rank 0 into the parameters, unit by unit, and into the buffers, but for
// those that are `missing`. All ranks go on to the end if one cannot be read.
void put(train::Strategy& strategy, const Source& source, const std::vector<std::string>& missing) {
  const auto is_there = [&](const std::string& name) {
    return std::ranges::find(missing, name) == missing.end();
  };
  const at::NoGradGuard no_grad;
  const memory::Charge charge(memory::Category::kCommunication);
  dist::Communicator& ranks = strategy.mesh().world();
  const at::Device device = strategy.list().parameters.front().tensor.device();
  base::KeptError problem;
  const auto sent = [&](const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype) {
    const at::Tensor values = at::empty(sizes, at::TensorOptions(dtype).device(device));
    if (ranks.rank() == 0 && !problem.is_there()) problem.keep([&] { source.read(name, values); });
    ranks.broadcast(values, /*root=*/0, dist::Purpose::kParameter).wait();
    return values;
  };
  const nn::ParameterList& list = strategy.list();
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      const nn::Parameter& p = list.parameters[i];
      if (!is_there(p.name)) continue;
      // In float32, of which master weights keep what a parameter of 2 bytes rounds away.
      const at::ScalarType type = p.tensor.scalar_type();
      const bool is_half = at::isReducedFloatingType(type);
      const at::Tensor values = sent(p.name, p.whole_sizes(), is_half ? at::kFloat : type);
      const at::Tensor mine = p.placement.part_of(values);
      p.tensor.detach().copy_(mine);
      const train::ParameterShard& updated = strategy.placement(i).updated;
      if (!is_half || !updated.tensor.defined() || !p.tensor.requires_grad()) continue;
      const at::Tensor exact = mine.flatten().narrow(0, updated.begin, updated.tensor.numel());
      problem.keep([&] { strategy.optimizer().take_exact(updated.tensor, exact); });
    }
  }
  for (const auto& [name, buffer] : buffers_of(strategy)) {
    if (is_there(name)) buffer.copy_(sent(name, buffer.sizes(), buffer.scalar_type()));
  }
  strategy.passes().weights_changed();
  problem.rethrow();
}

WeightsFit load(train::Strategy& strategy, const std::string& what,
                const std::function<Source()>& open, const WeightsFit& allowed) {
  const dist::CallScope call(strategy.mesh().world(), "io::load_weights");
  dist::Communicator& ranks = strategy.mesh().world();
  Source source;
  const auto said = dist::on_all_ranks(ranks, what, [&]() -> std::string {
    strategy.verify_weights();
    const std::string wrong = train::under_inference_mode("they are loaded");
    if (!wrong.empty()) throw Error(wrong);
    if (strategy.mesh().pipeline().size() > 1) {
      throw Error("the model is split over a pipeline axis: load a checkpoint instead");
    }
    if (ranks.rank() != 0) return "";
    source = open();
    const WeightsFit fit = fit_weights("these weights", source.specs, specs_of(strategy), allowed);
    return nlohmann::json(std::array{fit.missing, fit.left_over}).dump();
  });
  const nlohmann::json names = nlohmann::json::parse(said.front());
  const WeightsFit fit{.missing = names[0], .left_over = names[1]};
  strategy.change_on_all_ranks(
      "some weights are loaded and some are not, load a checkpoint or discard the model",
      [&] { put(strategy, source, fit.missing); });
  strategy.forget_writes();  // all that was written before
  return fit;
}

}  // namespace

NamedTensors state_dict(train::Strategy& strategy, WholeOn ranks) {
  dist::Communicator& world = strategy.mesh().world();
  const dist::CallScope call(world, "io::state_dict");
  const bool everywhere = ranks == WholeOn::kAllRanks;
  dist::verify_same(world, "who gets the state dict", everywhere ? "all ranks" : "rank 0");
  strategy.verify_writes();
  const bool keeps = everywhere || world.rank() == 0;
  const nn::ParameterList& whole = strategy.stage_of_model().whole();
  NamedTensors dict(keeps ? whole.size() : 0);
  whole_values(strategy, ranks, [&](std::size_t g, const at::Tensor& tensor) {
    dict[g] = {whole.parameters[g].name, copy_of(tensor)};
  });
  if (!keeps) return dict;
  for (const auto& [name, buffer] : buffers_of(strategy)) dict.emplace_back(name, copy_of(buffer));
  return dict;
}

WeightsFit load_weights(train::Strategy& strategy, const NamedTensors& weights,
                        const WeightsFit& allowed) {
  return load(
      strategy, "the weights cannot be loaded", [&] { return source_of(weights); }, allowed);
}

WeightsFit load_weights(train::Strategy& strategy, const std::filesystem::path& path,
                        const WeightsFit& allowed) {
  return load(
      strategy, fmt::format("the weights in {} cannot be loaded", path.string()),
      [&] { return source_of(safetensors::Folder(path)); }, allowed);
}

}  // namespace zero::io
