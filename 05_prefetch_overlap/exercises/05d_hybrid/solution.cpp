#include "05d.hpp"

using exercise_05d::Level;
using exercise_05d::Model;
using exercise_05d::Parameter;

// By unit, because a unit is cut as a whole.
std::vector<std::int64_t> unit_elements(const Model& model) {
  std::vector<std::int64_t> elements(model.units);
  for (const Parameter& p : model.parameters) elements[p.unit] += p.elements;
  return elements;
}

std::vector<Level> levels(const Model& model, std::int64_t threshold) {
  std::vector<Level> result;
  for (const std::int64_t n : unit_elements(model)) {
    result.push_back(n >= threshold ? Level::kZero3 : Level::kZero2);
  }
  return result;
}

std::int64_t bytes_at_rest(const Model& model, const std::vector<Level>& levels, int ranks) {
  const std::vector<std::int64_t> elements = unit_elements(model);
  std::int64_t bytes = 0;
  for (int unit = 0; unit < model.units; ++unit) {
    const std::int64_t n = elements[unit];
    bytes += levels[unit] == Level::kZero2 ? 4 * n + 12 * n / ranks : 16 * n / ranks;
  }
  return bytes;
}

std::int64_t bytes_sent(const Model& model, const std::vector<Level>& levels, int ranks) {
  const std::vector<std::int64_t> elements = unit_elements(model);
  std::int64_t bytes = 0;
  for (int unit = 0; unit < model.units; ++unit) {
    // The gradients, and the parameters after the update, or before forward and before backward.
    const int times = levels[unit] == Level::kZero2 ? 2 : 3;
    bytes += times * 4 * elements[unit] * (ranks - 1) / ranks;
  }
  return bytes;
}
