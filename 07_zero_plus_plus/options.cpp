#include "options.hpp"

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

}  // namespace zero
