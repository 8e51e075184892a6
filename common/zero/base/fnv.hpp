#pragma once

#include <cstdint>
#include <string_view>

namespace zero::base {

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the same on every machine, which std::hash is not. It does
/// not protect against forgery. `hash`: that of the text before this one.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 14695981039346656037ULL) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

/// 53 bits of it, which a double holds: for ranks to compare among other numbers.
constexpr double fnv1a_as_double(std::string_view text) {
  return static_cast<double>(fnv1a(text) >> 11);
}

}  // namespace zero::base
