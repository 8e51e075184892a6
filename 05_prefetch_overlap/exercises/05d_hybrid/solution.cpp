#include "05d.hpp"

using exercise_05d::Level;
using exercise_05d::Model;
using exercise_05d::Parameter;

std::vector<Level> levels(const Model& model, std::int64_t threshold) {
  std::vector<std::int64_t> elements(model.units);
  for (const Parameter& p : model.parameters) elements[p.unit] += p.elements;
  std::vector<Level> result;
  for (const std::int64_t n : elements) {
    result.push_back(n >= threshold ? Level::kZero3 : Level::kZero2);
  }
  return result;
}

std::int64_t bytes_at_rest(const Model& model, const std::vector<Level>& levels, int ranks) {
  std::int64_t bytes = 0;
  for (const Parameter& p : model.parameters) {
    const bool whole = levels[p.unit] == Level::kZero2;
    bytes += whole ? 4 * p.elements + 12 * p.elements / ranks : 16 * p.elements / ranks;
  }
  return bytes;
}

std::int64_t bytes_sent(const Model& model, const std::vector<Level>& levels, int ranks) {
  std::int64_t bytes = 0;
  for (const Parameter& p : model.parameters) {
    // The gradient, and the parameter after the update, or before forward and before backward.
    const int times = levels[p.unit] == Level::kZero2 ? 2 : 3;
    bytes += times * 4 * p.elements * (ranks - 1) / ranks;
  }
  return bytes;
}
