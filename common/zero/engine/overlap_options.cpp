#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/engine/overlap_options.hpp>

namespace zero {

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
  return o;
}

std::string to_text(const OverlapOptions& o) {
  return fmt::format(
      "stage {}\nbuckets of {} bytes, {} in flight\nlookahead {}\n"
      "units below {} elements whole, {} bytes ahead at most\n"
      "updated parameters gathered in {}",
      o.stage, o.bucket_bytes, o.in_flight_bytes, o.lookahead, o.whole_below, o.ahead_bytes,
      o.defer_parameter_gather ? "forward" : "the step");
}

}  // namespace zero
