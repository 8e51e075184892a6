#include "traffic.hpp"

#include <fmt/format.h>

#include <zero/base/error.hpp>

namespace zero::plan {

const char* name(Scheme scheme) {
  constexpr const char* kNames[] = {
      "DDP", "ZeRO-1", "ZeRO-1 naive", "ZeRO-2", "ZeRO-2 placeholder", "ZeRO-3", "ZeRO-3 kept"};
  return kNames[static_cast<int>(scheme)];
}

Scheme scheme_of(Stage stage) {
  constexpr Scheme kSchemes[] = {Scheme::kDdp, Scheme::kZero1, Scheme::kZero2, Scheme::kZero3};
  return kSchemes[static_cast<int>(stage)];
}

Copies copies(std::int64_t parameters, const Policy& policy) {
  return {static_cast<double>(parameters * policy.gradient),
          static_cast<double>(parameters * policy.parameter)};
}

Traffic volume(Scheme scheme, const Copies& v, std::int64_t world_size, double kept_share) {
  switch (scheme) {
    case Scheme::kDdp:
      return {v.gradients, v.gradients, 0};
    case Scheme::kZero1:
    case Scheme::kZero2:
    case Scheme::kZero3Kept:
      return {v.gradients, 0, v.parameters};
    case Scheme::kZero1Naive:
      return {v.gradients, v.gradients, v.parameters};
    case Scheme::kZero2Placeholder:
      return {v.gradients * static_cast<double>(world_size), 0, v.parameters};
    case Scheme::kZero3:
      return {v.gradients, 0, v.parameters * (2 - kept_share)};
  }
  throw Error("there is no such way of sending");
}

Traffic sent(Scheme scheme, const Copies& copies, std::int64_t world_size, double kept_share) {
  if (world_size < 1) {
    throw Error(fmt::format("the world size is {}, but must be at least 1", world_size));
  }
  Traffic traffic = volume(scheme, copies, world_size, kept_share);
  const double part = redundant_share(world_size);
  traffic.gradients_reduced *= part;
  traffic.gradients_gathered *= part;
  traffic.parameters_gathered *= part;
  return traffic;
}

}  // namespace zero::plan
