#include "traffic.hpp"

#include <fmt/format.h>

#include <algorithm>

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

double sent_by_owner(Scheme scheme, double copy, std::int64_t world_size, double owned,
                     double owned_kept) {
  const auto n = static_cast<double>(world_size);
  const double all_reduce = 2 * copy * (n - 1) / n;
  switch (scheme) {
    case Scheme::kDdp:
      return all_reduce;
    case Scheme::kZero1Naive:
      return all_reduce + (n - 1) * owned;
    case Scheme::kZero1:
    case Scheme::kZero2:
    case Scheme::kZero3Kept:
      return copy - owned + (n - 1) * owned;
    case Scheme::kZero2Placeholder:
      return (n - 1) * (copy + owned);
    case Scheme::kZero3:
      return copy - owned + (n - 1) * (2 * owned - owned_kept);
  }
  throw Error("there is no such way of sending");
}

ParameterResidency zero3_parameters(Scheme scheme, std::int64_t parameters,
                                    std::int64_t largest_unit, const Policy& policy,
                                    std::int64_t world_size) {
  const std::int64_t rest = model_states(parameters, policy, Stage::kZero3, world_size).parameters;
  const std::int64_t whole = parameters * policy.parameter;
  const std::int64_t unit = largest_unit * policy.parameter;
  if (scheme == Scheme::kZero3Kept) return {rest, whole};
  return {rest, std::min(whole, rest + unit)};
}

}  // namespace zero::plan
