#include "zero_plus_plus.hpp"

#include <memory>
#include <utility>

#include "quantized_gradients.hpp"
#include "quantized_parameters.hpp"
#include "secondary_shard.hpp"

namespace zero {

void declare(base::Keys& keys, ZeroPlusPlusOptions& o) {
  declare(keys, o.overlap);
  keys.count_or("group_size", "host", dist::Mesh::kRanksOfHost, o.group_size, /*least=*/1);
  keys.flag("secondary_shards", o.secondary_shards);
  keys.flag("quantize_parameters", o.quantize_parameters);
  keys.flag("quantize_gradients", o.quantize_gradients);
  keys.count_if(
      "gradient_bits", [](std::int64_t n) { return n == 4 || n == 8; }, "4 or 8", o.gradient_bits);
  const auto is_even = [](std::int64_t n) { return n >= 2 && n % 2 == 0; };
  keys.count_if("quantization_block", is_even, "an even number from 2", o.quantization_block);
  keys.count_if("gradient_block", is_even, "an even number from 2", o.gradient_block);
  keys.require([&o] { return o.overlap.stage == 3; }, "the options of ZeRO++ need stage 3");
  keys.require([&o] { return o.secondary_shards || o.quantize_parameters || o.quantize_gradients; },
               "no part of ZeRO++ is chosen: set secondary_shards, quantize_parameters or "
               "quantize_gradients, or leave the other options of ZeRO++ out");
}

namespace {

using ParameterTransfer = std::unique_ptr<train::ParameterTransfer>;

// Gathers shards of `elements` of a type.
ParameterTransfer gather_of(std::int64_t elements, const at::TensorOptions& type,
                            const dist::Mesh& mesh, bool has_secondary_shards,
                            const train::FlatBuffer& buffer) {
  dist::Communicator& all = mesh.data();
  dist::Communicator& group = mesh.along("shard");
  const std::int64_t bytes = elements * static_cast<std::int64_t>(type.dtype().itemsize());
  auto from_all = std::make_unique<train::AllGather>(all, bytes, all.size() - group.size());
  // If there is one group, a secondary shard would be the shard.
  if (!has_secondary_shards || group.size() == all.size()) return from_all;
  return std::make_unique<SecondaryShard>(std::move(from_all), group, all.size() * elements, type,
                                          buffer.version);
}

ParameterTransfer parameter_transfer(const train::FlatBuffer& buffer, const dist::Mesh& mesh,
                                     const ZeroPlusPlusOptions& options) {
  if (!options.quantize_parameters) {
    return gather_of(buffer.layout.shard(), buffer.options, mesh, options.secondary_shards, buffer);
  }
  ShardBlocks blocks(buffer.layout, {.bits = 8, .block = options.quantization_block});
  ParameterTransfer bytes = gather_of(blocks.packed_bytes(), buffer.options.dtype(at::kByte), mesh,
                                      options.secondary_shards, buffer);
  return std::make_unique<QuantizedParameters>(std::move(bytes), std::move(blocks),
                                               mesh.data().rank(), buffer.pool);
}

}  // namespace

train::Transfers zero_plus_plus_transfers(const dist::Mesh& mesh,
                                          const ZeroPlusPlusOptions& options) {
  train::Transfers transfers;
  transfers.ranks_outside = mesh.data().size() - mesh.along("shard").size();
  if (mesh.data().size() == 1) return transfers;
  if (options.quantize_parameters || (options.secondary_shards && transfers.ranks_outside > 0)) {
    transfers.parameters = [mesh, options](const train::FlatBuffer& buffer) {
      return parameter_transfer(buffer, mesh, options);
    };
  }
  if (options.quantize_gradients) {
    transfers.gradients = [mesh, options](const train::FlatBuffer& buffer) {
      const int bits = static_cast<int>(options.gradient_bits);
      return std::make_unique<QuantizedGradients>(
          mesh, ShardBlocks(buffer.layout, {.bits = bits, .block = options.gradient_block}),
          buffer);
    };
  }
  return transfers;
}

std::unique_ptr<Overlap> make_zero_plus_plus(const train::StrategyArguments& arguments,
                                             const ZeroPlusPlusOptions& options) {
  const train::StrategyArguments in_groups =
      arguments.with_shards(Overlap::agreed(arguments, options).group_size);
  return std::make_unique<Overlap>(in_groups, options.overlap,
                                   zero_plus_plus_transfers(in_groups.mesh, options));
}

}  // namespace zero
