#pragma once

#include <cstdint>

namespace zero::train {

/// Bytes of model states that one rank holds at rest: after sync_parameters, before zero_grad.
struct ModelStateBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
  bool operator==(const ModelStateBytes&) const = default;
};

/// What a stage costs one rank, by its formula.
struct Costs {
  ModelStateBytes at_rest;
  /// Bytes of gradients and parameters that this rank sends in a step with one micro-batch. Control
  /// messages are not counted. It is a step that begins now: some modes send less if the weights
  /// have been gathered since the last update.
  std::int64_t sent = 0;
  /// What each further micro-batch of a step adds to `sent`, if gradients are added up before they
  /// are reduced: its gathers of parameters.
  std::int64_t gathered = 0;
  /// Of `sent`, the bytes to ranks outside of this rank's group, in a mode that has groups of
  /// ranks.
  std::int64_t sent_between_groups = 0;
};

/// A part of Costs::sent.
struct SentBytes {
  std::int64_t all = 0;
  std::int64_t between_groups = 0;  ///< of `all`
  SentBytes& operator+=(const SentBytes& other) {
    all += other.all;
    between_groups += other.between_groups;
    return *this;
  }
};

}  // namespace zero::train
