#pragma once

#include <cstddef>
#include <cstdint>

namespace zero::train {

/// A call of a unit's hook (nn::UnitHooks), and the state of the thread that made it. The calls of
/// a pass decide what it gathers and reduces: a rank without a batch makes them again.
struct UnitCall {
  enum class Hook : std::uint8_t { kPreForward, kPostForward, kPreBackward, kRecordsBackward };
  Hook hook;
  std::size_t unit;
  bool with_graph;  ///< c10::GradMode
  bool suppressed;  ///< nn::SuppressGradientHooks: in a checkpoint that runs again
};

}  // namespace zero::train
