#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <string_view>

namespace zero::base {

/// The message for an unknown name: "unknown mode 'zer1'; known modes: ddp, zero1, zero2, zero3".
/// `kind` is a noun whose plural ends in s.
inline std::string unknown_name_message(std::string_view kind, std::string_view wanted,
                                        std::span<const std::string> known) {
  return fmt::format("unknown {} '{}'; known {}s: {}", kind, wanted, kind, fmt::join(known, ", "));
}

}  // namespace zero::base
