#pragma once

#include <fmt/format.h>

#include <string>

#include <zero/memory/accounting.hpp>
#include <zero/train/strategy.hpp>

namespace zero::testing {

/// Bytes of model states that this process holds beyond those of `before`, by the allocator.
inline train::ModelStateBytes states_since(const memory::Snapshot& before) {
  const memory::Snapshot now = memory::snapshot();
  const auto grown = [&](memory::Category c) { return now[c] - before[c]; };
  return {grown(memory::Category::kParameters), grown(memory::Category::kGradients),
          grown(memory::Category::kOptimizer)};
}

/// To compare and to print them.
inline std::string text_of(const train::ModelStateBytes& bytes) {
  return fmt::format("{} of parameters, {} of gradients, {} of the optimizer", bytes.parameters,
                     bytes.gradients, bytes.optimizer);
}

/// Bytes of gradients and parameters, which are what the formulas of traffic count.
inline std::int64_t training_bytes(const dist::Traffic& sent) {
  return sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter);
}

}  // namespace zero::testing
