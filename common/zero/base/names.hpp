#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
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

/// `value` with commas between thousands: "361,821,120".
inline std::string with_thousands(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::ptrdiff_t first_digit = value < 0 ? 1 : 0;
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > first_digit; at -= 3) text.insert(at, 1, ',');
  return text;
}

}  // namespace zero::base
