#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/engine/overlap_options.hpp>

namespace zero {

namespace {

void check_zero_plus_plus(const OverlapOptions& o) {
  if (zero_plus_plus_mode(o).empty()) {
    if (o.group_size == kRanksOfHost) return;
    throw Error(
        fmt::format("group_size is {}, but no option of ZeRO++ is set: set secondary_shards, "
                    "quantize_parameters or quantize_gradients, or leave group_size out",
                    o.group_size));
  }
  const auto refuse = [](const char* what, std::int64_t value, const char* right) {
    throw Error(fmt::format("{} is {}; {}", what, value, right));
  };
  if (o.stage != 3) refuse("stage", o.stage, "the options of ZeRO++ need stage 3");
  if (o.group_size < 1 && o.group_size != kRanksOfHost) {
    refuse("group_size", o.group_size, "1 rank is the least");
  }
  if (o.shard_size != 0) {
    refuse("shard_size", o.shard_size,
           "under ZeRO++ all ranks share the model states: leave it out (group_size is the size of "
           "groups)");
  }
  if (o.gradient_bits != 4 && o.gradient_bits != 8) {
    refuse("gradient_bits", o.gradient_bits, "take 4 or 8");
  }
  for (const auto& [what, block] : {std::pair{"quantization_block", o.quantization_block},
                                    {"gradient_block", o.gradient_block}}) {
    if (block < 2 || block % 2 != 0) refuse(what, block, "take an even number from 2");
  }
}

}  // namespace

std::string zero_plus_plus_mode(const OverlapOptions& o) {
  const int parts = (o.secondary_shards ? 1 : 0) + (o.quantize_parameters ? 1 : 0) +
                    (o.quantize_gradients ? 1 : 0);
  if (parts > 1) return "zeropp";
  return o.secondary_shards      ? "hpz"
         : o.quantize_parameters ? "qwz"
         : o.quantize_gradients  ? "qgz"
                                 : "";
}

const OverlapOptions& checked(const OverlapOptions& o) {
  const auto refuse = [](const char* what, std::int64_t value, const char* right) {
    throw Error(fmt::format("{} is {}; {}", what, value, right));
  };
  if (o.stage < 0 || o.stage > 3) refuse("stage", o.stage, "there are 0, 1, 2 and 3");
  if (o.bucket_bytes < 1) refuse("the size of a bucket", o.bucket_bytes, "1 byte is the least");
  if (o.in_flight_bytes < 1) {
    refuse("the bound on bytes in flight", o.in_flight_bytes, "1 byte is the least");
  }
  if (o.lookahead < 0 && o.lookahead != kAutoLookahead) {
    refuse("lookahead", o.lookahead, "0 gathers a unit when it is needed");
  }
  if (o.ahead_bytes < 0) refuse("the room for units ahead", o.ahead_bytes, "0 is the least");
  if (o.shard_size < 0 && o.shard_size != kRanksOfHost) {
    refuse("shard_size", o.shard_size, "1 rank is the least");
  }
  if (o.shard_size != 0 && o.stage == 0) {
    refuse("stage", o.stage, "with a shard_size something must be sharded: take 1, 2 or 3");
  }
  if (o.whole_below < 0) refuse("the size of units that stay whole", o.whole_below, "0: none does");
  check_zero_plus_plus(o);
  return o;
}

std::string to_text(const OverlapOptions& o) {
  return fmt::format(
      "stage {}\nbuckets of {} bytes, {} in flight\nlookahead {}\n"
      "units below {} elements whole, {} bytes ahead at most\n"
      "updated parameters gathered in {}\n"
      "secondary shards {}, quantised parameters {} in blocks of {}, quantised gradients {} of {} "
      "bits in blocks of {}",
      o.stage, o.bucket_bytes, o.in_flight_bytes, o.lookahead, o.whole_below, o.ahead_bytes,
      o.defer_parameter_gather ? "forward" : "the step", o.secondary_shards, o.quantize_parameters,
      o.quantization_block, o.quantize_gradients, o.gradient_bits, o.gradient_block);
}

}  // namespace zero
