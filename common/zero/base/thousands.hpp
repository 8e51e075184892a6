#pragma once

#include <cstdint>
#include <string>

namespace zero::base {

/// `value` with commas between thousands: "361,821,120".
inline std::string with_thousands(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::ptrdiff_t first_digit = value < 0 ? 1 : 0;
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > first_digit; at -= 3) text.insert(at, 1, ',');
  return text;
}

}  // namespace zero::base
