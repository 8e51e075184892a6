#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/registry.hpp>

#include "ranks.hpp"

/// Strategies of all chapters.
namespace zero::testing {

/// Every strategy and variant of all chapters that has the bits of chapter 00.
inline std::vector<std::string> all_modes() {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  return registry.exact_modes();
}

/// Whether `mode` shards parameters: a second backward is an error there.
inline bool is_stage_3(const std::string& mode) {
  return mode.find("zero3") != std::string::npos || mode.starts_with("engine3") ||
         mode.starts_with("hsdp3") || mode.starts_with("hpz");
}

/// The strategy of `mode`. Called by all ranks.
inline std::unique_ptr<train::Strategy> make_strategy(const std::string& mode,
                                                      const train::StrategyArguments& arguments) {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  return registry.make(mode, arguments);
}

/// Runs `body` with each of `modes` on the same ranks. A failure names the mode.
inline void on_modes(int world_size, const std::vector<std::string>& modes,
                     const std::function<void(dist::Communicator&, const std::string&)>& body) {
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    for (const std::string& mode : modes) {
      SCOPED_TRACE(mode);
      body(communicator, mode);
    }
  });
}

inline void on_all_modes(int world_size,
                         const std::function<void(dist::Communicator&, const std::string&)>& body) {
  on_modes(world_size, all_modes(), body);
}

/// The same with every stage of the engine.
inline void on_all_stages(int world_size,
                          const std::function<void(dist::Communicator&, int)>& body) {
  on_ranks(world_size, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}", stage));
      body(communicator, stage);
    }
  });
}

}  // namespace zero::testing
