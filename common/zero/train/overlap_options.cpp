#include <nlohmann/json.hpp>

#include <zero/train/overlap_options.hpp>

namespace zero {

void declare(base::Keys& keys, OverlapOptions& o) {
  keys.count_if(
      "stage", [](std::int64_t n) { return 0 <= n && n <= 3; }, "0, 1, 2 or 3", o.stage);
  keys.mib("bucket_mib", o.bucket_bytes);
  keys.mib("in_flight_mib", o.in_flight_bytes);
  keys.count_or("lookahead", "auto", kAutoLookahead, o.lookahead);
  keys.mib("ahead_mib", o.ahead_bytes, /*least=*/0);
  keys.count_or("whole_below", "hybrid", kHybridThreshold, o.whole_below);
  keys.flag("keep_buffers", o.keep_buffers);
  keys.flag("keep_gradients", o.keep_gradients);
  keys.flag("defer_parameter_gather", o.defer_parameter_gather);
  keys.field(
      "offload",
      [&keys, &o](const base::Keys::Json& value) {
        if (!value.is_string() || value == "") {
          keys.refuse("offload", value, "\"none\", \"host\", or a folder for optimizer states");
        }
        o.offload = value.get<std::string>();
      },
      [&o] { return base::Keys::Json(o.offload); });
  keys.mib("offload_tile_mib", o.offload_tile_bytes);
}

}  // namespace zero
