#include <fmt/format.h>

#include <unordered_set>

#include <zero/base/error.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io::safetensors {
namespace {

using nlohmann::json;

// A header is an object of objects that hold arrays.
constexpr std::size_t kDeepestNesting = 3;

}  // namespace

json parse_strictly(std::string_view text, const std::string& path) {
  std::vector<std::unordered_set<std::string>> open;  // the keys of every open object or array
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (open.size() == kDeepestNesting) {
          throw Error(
              fmt::format("{}: its JSON is nested deeper than {} levels", path, kDeepestNesting));
        }
        open.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        open.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open.back().insert(parsed.get<std::string>()).second) {
          throw Error(fmt::format("{}: its JSON has the key {} twice in one object", path,
                                  shown(parsed.get<std::string>())));
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    json result = json::parse(text, check);
    if (!result.is_object()) throw Error(fmt::format("{}: its JSON is not an object", path));
    return result;
  } catch (const json::parse_error& error) {
    throw Error(fmt::format("{}: its JSON is broken at byte {}", path, error.byte));
  } catch (const json::exception&) {
    throw Error(fmt::format("{}: its JSON holds a number that is too large", path));
  }
}

}  // namespace zero::io::safetensors
