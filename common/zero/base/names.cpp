#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <vector>

#include <zero/base/names.hpp>

namespace zero::base {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Optimal string alignment: Levenshtein's distance with swaps of neighbours. Three rows of the
// table are enough, because a swap looks two rows back.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_back(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_back[j - 2] + 1);
      }
    }
    two_back.swap(previous);
    previous.swap(row);
  }
  return previous[b.size()];
}

std::string plural(std::string_view noun) {
  constexpr std::string_view kVowels = "aeiou";
  const bool vowel_before =
      noun.size() > 1 && kVowels.find(noun[noun.size() - 2]) != std::string_view::npos;
  if (noun.ends_with('y') && !vowel_before)
    return fmt::format("{}ies", noun.substr(0, noun.size() - 1));
  return fmt::format("{}s", noun);
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view wanted,
                                        std::span<const std::string> known) {
  constexpr std::size_t kShortestPrefix = 3;
  const std::string target = lower(wanted);
  const std::string* beginning = nullptr;
  const std::string* nearest = nullptr;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const std::string& name : known) {
    const std::string candidate = lower(name);
    const std::size_t edits = edit_distance(target, candidate);
    if (edits * 3 <= std::max(target.size(), candidate.size()) && edits < fewest) {
      nearest = &name;
      fewest = edits;
    }
    if (target.size() >= kShortestPrefix && candidate.starts_with(target) &&
        (beginning == nullptr || name.size() < beginning->size())) {
      beginning = &name;
    }
  }
  if (fewest == 0) return *nearest;
  if (beginning != nullptr) return *beginning;
  return nearest != nullptr ? std::optional(*nearest) : std::nullopt;
}

std::string unknown_name_message(std::string_view kind, std::string_view wanted,
                                 std::span<const std::string> known) {
  std::string message = fmt::format("unknown {} '{}'; ", kind, wanted);
  if (const auto nearest = nearest_name(wanted, known)) {
    message += fmt::format("did you mean '{}'? ", *nearest);
  }
  return message + fmt::format("known {}: {}", plural(kind), fmt::join(known, ", "));
}

}  // namespace zero::base
