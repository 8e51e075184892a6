#pragma once

#include <zero/distributed/mesh.hpp>
#include <zero/train/flat/flat_parameters.hpp>

#include "options.hpp"
#include "secondary_shard.hpp"

namespace zero {

/// What the options of ZeRO++ put in place of the collectives of stage 3. `mesh`: the groups, axes
/// "replica" and "shard"; it must outlive the transfers. `version`: see SecondaryShard.
///
///     all-gather          of values, or of bytes if parameters are quantized
///     SecondaryShard      around it; keeps a part of what it gathers
///     QuantizedParameters around both
///     QuantizedGradients  in place of the reduce-scatter
///
/// With one rank nothing is sent, and so nothing is rounded.
train::Transfers zero_plus_plus_transfers(const dist::Mesh& mesh,
                                          const ZeroPlusPlusOptions& options,
                                          const SecondaryShard::WeightsVersion& version);

}  // namespace zero
