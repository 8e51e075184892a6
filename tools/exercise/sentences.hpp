#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "small_formulas.hpp"

/// Parts of the grader's sentences.
namespace zero::exercise {

/// "3,640".
std::string grouped(std::int64_t bytes);

/// "3,640 bytes too many" or "3,640 bytes of gradients too few", for a difference other than 0.
std::string too_many(std::int64_t difference, const std::string& of_what = "");

/// "layer 0", "layers 0 and 2", "layers 0, 1 and 3".
std::string layers(const std::vector<int>& which);

/// The smallest set of layers among `candidates` whose `bytes` add up to `wanted`, or nothing.
std::optional<std::vector<int>> layers_that_sum_to(std::int64_t wanted, const LayerBytes& bytes,
                                                   const std::vector<int>& candidates);

}  // namespace zero::exercise
