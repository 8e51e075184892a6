#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <string_view>

namespace zero::base {

/// What an earlier release had, and what to do now.
struct Removed {
  std::string_view name, instead;
};
inline constexpr Removed kRemoved[] = {
    {"offload_delay_after", "updates are made in their step; exercise 10c has the method"},
    {"--offload-parameters", "10_offload/host.md has the bytes of what leaves the device"},
    {"--disk-bandwidth", "docs/engine.md has the time of optimizer states on a disk by formula"},
    {"--disk", "a rank's file takes 8 bytes for each of its parameters, 12 in mixed precision"},
    {"--scenarios", "docs/planner.md has the table with a command in each row"},
    {"--hybrid", "exercise 05d asks for its bytes, and engine3:whole_below=N trains it"},
    {"--hybrid-threshold", "engine3:whole_below=N trains the hybrid"},
    {"--json", "the planner prints its figures as tables, and ends with 3 if nothing fits"},
    {"--collectives", "bytes are those of a ring; 06_hsdp/README.md has direct sends beside them"},
    {"--auto-resume", "--resume FOLDER goes on from a checkpoint"},
    {"--alone-mode", "the run without communication is ddp's"},
    {"--reduce-dtype", "an engine has reduce_in_float32"},
};

/// The message for an unknown name: "unknown mode 'zer1'; known modes: ddp, zero1, zero2, zero3".
/// `kind` is a noun whose plural ends in s.
inline std::string unknown_name_message(std::string_view kind, std::string_view wanted,
                                        std::span<const std::string> known) {
  for (const Removed& gone : kRemoved) {
    if (gone.name == wanted) return fmt::format("{} was removed: {}", gone.name, gone.instead);
  }
  return fmt::format("unknown {} '{}'; known {}s: {}", kind, wanted, kind, fmt::join(known, ", "));
}

}  // namespace zero::base
