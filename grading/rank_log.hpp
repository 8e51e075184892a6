#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

/// What a rank of a learner's program did, as the allocator, the communicator and LibTorch saw it.
namespace zero::exercise {

/// One event, in the order in which they happened on the rank.
struct Event {
  enum class Kind : std::uint8_t {
    kStart,     ///< a collective starts
    kWait,      ///< a wait for a collective returns
    kForward,   ///< a layer's matrix product of forward
    kBackward,  ///< one of a layer's two matrix products of backward
    kUpdate,    ///< AdamW updates a tensor
  };
  Kind kind;
  int step;                 ///< counted from 1
  std::string operation;    ///< kStart, kWait: "all_gather parameter"
  std::int64_t bytes;       ///< of the tensor; kForward: of the weight
  int layer;                ///< kForward, kBackward; else -1
  std::uint64_t digest;     ///< kForward: of the weight
  std::uint64_t input = 0;  ///< kForward, and the product of kBackward that has it: of the input
};

/// Bytes at the end of a step.
struct StepBytes {
  std::array<std::int64_t, memory::kCategories> held{};
  std::array<std::int64_t, memory::kCategories> peak{};
  std::int64_t states_peak = 0;  ///< of parameters, gradients and optimizer states together
  std::array<std::int64_t, dist::kPurposes> sent{};  ///< since the end of the step before

  std::int64_t held_as(memory::Category c) const { return held[static_cast<std::size_t>(c)]; }
  std::int64_t peak_as(memory::Category c) const { return peak[static_cast<std::size_t>(c)]; }
  std::int64_t sent_as(dist::Purpose p) const { return sent[static_cast<std::size_t>(p)]; }
};

struct RankLog {
  std::vector<Event> events;
  std::vector<StepBytes> steps;
  std::string digest;  ///< of the last weights, as the program prints it; empty if it does not
};

/// A rank hands its log to the parent process as text.
std::string to_text(const RankLog& log);
RankLog log_from_text(const std::string& text);

/// Runs `function` on this rank and records what it does. Called once in a process.
RankLog record(dist::Communicator& communicator, const dist::RankFunction& function);

/// Records the end of a step, where a rank is recorded; returns memory::snapshot().
memory::Snapshot record_step();

}  // namespace zero::exercise
