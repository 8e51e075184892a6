#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/keys.hpp>
#include <zero/base/names.hpp>

namespace zero::base {
namespace {

using Json = nlohmann::json;

constexpr double kMib = 1 << 20;
constexpr double kMostMib = 1e9;

// Accepts 5e8 as well as 500000000. The result is the least number there is if `value` is no whole
// number, so that no limit from below allows it.
std::int64_t as_count(const nlohmann::json& value) {
  const double number = value.is_number() ? value.get<double>() : 0.5;
  const bool whole =
      number == std::floor(number) && std::abs(number) <= static_cast<double>(Keys::kMostCount);
  return whole ? static_cast<std::int64_t>(number) : std::numeric_limits<std::int64_t>::min();
}

// A field with a value that `fits`; `read` and `give` are from JSON and back.
template <typename T, typename Fits, typename Read, typename Give = Json (*)(T)>
void typed(
    Keys& keys, const std::string& key, const std::string& right, T& out, const Fits& fits,
    const Read& read, const Give& give = [](T value) { return Json(value); }) {
  keys.field(
      key,
      [&keys, &out, key, right, fits, read](const Json& value) {
        if (!fits(value)) keys.refuse(key, value, right);
        out = read(value);
      },
      [&out, give] { return give(out); });
}

}  // namespace

void Keys::flag(const std::string& key, bool& out) {
  typed(
      *this, key, "true or false", out, [](const Json& value) { return value.is_boolean(); },
      [](const Json& value) { return value.get<bool>(); });
}

void Keys::real(const std::string& key, const std::string& right, double& out) {
  typed(
      *this, key, right, out,
      [](const Json& value) { return value.is_number() && value.get<double>() >= 0; },
      [](const Json& value) { return value.get<double>(); });
}

void Keys::count(const std::string& key, std::int64_t least, std::int64_t& out, std::int64_t most) {
  count_if(
      key, [=](std::int64_t n) { return n >= least && n <= most; },
      fmt::format("a whole number from {} to {:.8g}", least, static_cast<double>(most)), out);
}

void Keys::count_if(const std::string& key, std::function<bool(std::int64_t)> is_right,
                    const std::string& right, std::int64_t& out) {
  const auto fits = [is_right = std::move(is_right)](const Json& v) {
    return is_right(as_count(v));
  };
  typed(*this, key, right, out, fits, &as_count);
}

void Keys::count_or(const std::string& key, const std::string& word, std::int64_t meaning,
                    std::int64_t& out, std::int64_t least) {
  const Json as_word = word;
  const auto read = [=](const Json& v) { return v == as_word ? meaning : as_count(v); };
  typed(
      *this, key,
      fmt::format("{} or a whole number from {} to {:g}", as_word.dump(), least,
                  static_cast<double>(kMostCount)),
      out, [=](const Json& v) { return v == as_word || as_count(v) >= least; }, read,
      [=](std::int64_t n) { return n == meaning ? as_word : Json(n); });
}

void Keys::mib(const std::string& key, std::int64_t& bytes, std::int64_t least) {
  const auto number = [](const Json& v) { return v.is_number() ? v.get<double>() : -1; };
  typed(
      *this, key,
      fmt::format("a number of MiB, from {} to {:g}",
                  least == 1 ? "one byte" : fmt::format("{} bytes", least), kMostMib),
      bytes,
      [=](const Json& v) {
        return number(v) * kMib >= static_cast<double>(least) && number(v) <= kMostMib;
      },
      [=](const Json& v) { return static_cast<std::int64_t>(number(v) * kMib); },
      [](std::int64_t n) { return Json(static_cast<double>(n) / kMib); });
}

void Keys::field(const std::string& key, std::function<void(const Json&)> take,
                 std::function<Json()> give) {
  fields_[key] = {std::move(take), std::move(give)};
}

void Keys::field(const std::string& key, std::function<void(const Json&)> take) {
  field(key, std::move(take), {});
}

void Keys::require(std::function<bool()> is_right, std::string wrong) {
  rules_.push_back({std::move(is_right), std::move(wrong)});
}

std::vector<std::string> Keys::names() const {
  const auto keys = fields_ | std::views::keys;
  return {keys.begin(), keys.end()};
}

void Keys::read(const Json& object) const {
  for (const auto& [key, value] : object.items()) {
    const auto found = fields_.find(key);
    if (found == fields_.end()) {
      throw Error(where_ + ": " + unknown_name_message("key", key, names()));
    }
    found->second.take(value);
  }
  for (const Rule& rule : rules_) {
    if (!rule.is_right()) throw Error(where_ + ": " + rule.wrong);
  }
}

void Keys::read(const std::string& text) const { read(json_object(text, where_)); }

Keys::Json Keys::json() const {
  Json object = Json::object();
  for (const auto& [key, field] : fields_) {
    if (field.give) object[key] = field.give();
  }
  return object;
}

std::string Keys::text() const { return json().dump(/*indent=*/0); }

void Keys::refuse(const std::string& key, const Json& value, const std::string& right) const {
  throw Error(fmt::format("{}: {} is {}; it must be {}", where_, key, value.dump(), right));
}

nlohmann::json json_object(const std::string& text, const std::string& what) {
  try {
    using Event = nlohmann::json::parse_event_t;
    std::vector<std::set<std::string>> keys;  // of the objects around the place that is read
    const auto limit = bounded_depth(what);
    const auto watch = [&](int depth, Event event, const nlohmann::json& parsed) {
      if (event == Event::object_start) keys.emplace_back();
      if (event == Event::object_end) keys.pop_back();
      if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
        throw Error(
            fmt::format("{}: the key {} is there twice; give it once", what, parsed.dump()));
      }
      return limit(depth, event, parsed);
    };
    nlohmann::json json = nlohmann::json::parse(text, watch);
    if (!json.is_object()) throw Error(fmt::format("{} must be a JSON object", what));
    return json;
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("{} is not JSON: {}", what, error.what()));
  }
}

}  // namespace zero::base
