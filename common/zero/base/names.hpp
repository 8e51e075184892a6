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
    {"offload_parameters",
     "offload keeps the optimizer's states on a disk; the gather from a file is being rebuilt"},
    {"--offload-parameters", "--disk-bandwidth plans the optimizer's states on a disk"},
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
