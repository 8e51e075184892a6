#include "zero_plus_plus.hpp"

#include <memory>
#include <utility>

#include "quantized_gradients.hpp"
#include "quantized_parameters.hpp"
#include "secondary_shard.hpp"

namespace zero {

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

std::unique_ptr<ShardedDataParallel> make_zero_plus_plus(const train::StrategyArguments& arguments,
                                                         const ShardingOptions& options,
                                                         const ZeroPlusPlusOptions& parts) {
  const train::StrategyArguments groups = arguments.with_shards(parts.group_size);
  return std::make_unique<ShardedDataParallel>(groups, options,
                                               zero_plus_plus_transfers(groups.mesh, parts));
}

}  // namespace zero
