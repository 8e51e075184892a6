#include "05d.hpp"

using exercise_05d::Level;
using exercise_05d::Model;
using exercise_05d::Parameter;

std::vector<Level> levels(const Model& model, std::int64_t threshold) {
  return std::vector<Level>(model.units, Level::kZero2);
}

std::int64_t bytes_at_rest(const Model& model, const std::vector<Level>& levels, int ranks) {
  return 0;
}

std::int64_t bytes_sent(const Model& model, const std::vector<Level>& levels, int ranks) {
  return 0;
}
