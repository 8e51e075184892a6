#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <zero/base/error.hpp>

namespace zero::base {

/// How many arrays and objects within one another JSON from outside may have. What is read here has
/// fewer than ten.
inline constexpr int kDeepestJson = 64;

/// The callback for nlohmann's parse() wherever the text comes from outside this program. Without
/// it brackets in a file could end the program: nlohmann copies and writes values by recursion, and
/// a few hundred thousand levels are more than a stack holds.
///
/// What it is given to throws zero::Error, beginning with `what`, at the first level too many.
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
