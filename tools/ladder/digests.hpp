#pragma once

#include <torch/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <zero/train/strategy.hpp>

namespace zero::ladder {

/// The bytes of a contiguous tensor.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

/// SHA-256 of a tensor's bytes, 64 hexadecimal digits.
std::string digest_of(const at::Tensor& tensor);

/// One digest per parameter, each made whole for the moment: unit by unit, so that checking does
/// not need more memory than training. Called by all ranks.
std::vector<std::string> parameter_digests(train::Strategy& strategy);

/// One digest per parameter of which this rank updates a piece, of that piece; empty for others.
std::vector<std::string> piece_digests(const train::Strategy& strategy);

/// Whether training changed every piece that this rank updates, whose digests were `before`; counts
/// master weights as all_trainable_changed() does.
bool every_piece_changed(train::Strategy& strategy, const std::vector<std::string>& before);

/// One digest for several.
std::string combine(const std::vector<std::string>& digests);

/// Whether training changed every trainable parameter, whose digests were `before` and are `after`.
/// An update that is too small for a parameter of 2 bytes to show counts: it is in the master
/// weight. Called by all ranks; the same answer on all.
bool all_trainable_changed(train::Strategy& strategy, const std::vector<std::string>& before,
                           const std::vector<std::string>& after);

}  // namespace zero::ladder
