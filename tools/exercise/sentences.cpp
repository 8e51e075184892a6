#include "sentences.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace zero::exercise {

std::string grouped(std::int64_t bytes) {
  std::string digits = std::to_string(bytes);
  for (auto place = static_cast<int>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return digits;
}

std::string too_many(std::int64_t difference, const std::string& of_what) {
  return fmt::format("{} bytes{} too {}", grouped(std::abs(difference)),
                     of_what.empty() ? "" : " of " + of_what, difference > 0 ? "many" : "few");
}

std::string layers(const std::vector<int>& which) {
  std::string text = which.size() == 1 ? "layer " : "layers ";
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (i > 0) text += i + 1 == which.size() ? " and " : ", ";
    text += std::to_string(which[i]);
  }
  return text;
}

std::optional<std::vector<int>> layers_that_sum_to(std::int64_t wanted, const LayerBytes& bytes,
                                                   const std::vector<int>& candidates) {
  std::optional<std::vector<int>> best;
  for (unsigned set = 1; set < 1U << candidates.size(); ++set) {
    std::vector<int> chosen;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if ((set >> i & 1U) == 0) continue;
      chosen.push_back(candidates[i]);
      sum += bytes[static_cast<std::size_t>(candidates[i])];
    }
    if (sum == wanted && (!best || chosen.size() < best->size())) best = chosen;
  }
  return best;
}

}  // namespace zero::exercise
