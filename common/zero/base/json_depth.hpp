#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <zero/base/error.hpp>

namespace zero::base {

/// The deepest nesting of arrays and objects accepted in JSON from outside. Files that the project
/// reads have fewer than ten levels.
inline constexpr int kDeepestJson = 64;

/// The callback for nlohmann's parse() for text from outside this program. nlohmann copies and
/// writes values by recursion: without this limit, a file with a few hundred thousand nested
/// brackets would overflow the stack and end the program.
///
/// parse() then throws zero::Error, beginning with `what`, at the first level too many.
inline auto bounded_depth(std::string what) {
  return [what = std::move(what)](int depth, nlohmann::json::parse_event_t event, const auto&) {
    using Event = nlohmann::json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kDeepestJson) {
      throw Error(fmt::format("{}: its JSON is nested deeper than {} levels, the most that is read",
                              what, kDeepestJson));
    }
    return true;
  };
}

}  // namespace zero::base
