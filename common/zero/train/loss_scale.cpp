#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/train/loss_scale.hpp>

namespace zero::train {
namespace {

// The key of the state in a checkpoint's notes.
constexpr const char* kNote = "loss scale";

// A larger scale would leave a float32 loss too little range.
constexpr double kLargest = 0x1p100;

void require_scale(double scale) {
  int exponent = 0;
  if (scale >= 1.0 && scale <= kLargest && std::frexp(scale, &exponent) == 0.5) return;
  throw Error(fmt::format("a loss scale of {}: it must be a power of two from 1 to 2^100", scale));
}

}  // namespace

LossScale::LossScale(LossScaleOptions options) : options_(options), state_{options.initial, 0} {
  require_scale(options.initial);
  if (options.growth_steps < 1) {
    throw Error(fmt::format(
        "a loss scale that is doubled after {} good steps: it must be 1 or more of them",
        options.growth_steps));
  }
}

void LossScale::note_good_step() {
  // A restored state may count more good steps than this scale needs.
  if (state_.good_steps < options_.growth_steps - 1) {
    ++state_.good_steps;
    return;
  }
  if (state_.scale < kLargest) state_.scale *= 2;
  state_.good_steps = 0;
}

bool LossScale::note_overflow() {
  state_.good_steps = 0;
  if (state_.scale == 1.0) return false;
  state_.scale /= 2;
  return true;
}

void LossScale::set_state(const State& state) {
  require_scale(state.scale);
  if (state.good_steps < 0) {
    throw Error(fmt::format("a loss scale after {} good steps: it must be 0 or more of them",
                            state.good_steps));
  }
  state_ = state;
}

std::string LossScale::to_text() const {
  return fmt::format("{} {}", state_.scale, state_.good_steps);
}

void LossScale::set_from_text(const std::string& text) {
  State state;
  std::istringstream stream(text);
  if (!(stream >> state.scale >> state.good_steps) || !(stream >> std::ws).eof()) {
    throw Error(fmt::format(
        "'{}' is no state of a loss scale: the scale and a number of good steps", text));
  }
  set_state(state);
}

void LossScale::write_to(std::map<std::string, std::string>& notes) const {
  notes[kNote] = to_text();
}

void LossScale::resume_from(const std::map<std::string, std::string>& notes) {
  const auto found = notes.find(kNote);
  if (found != notes.end()) set_from_text(found->second);
}

std::string LossScale::describe() const {
  return fmt::format("a loss scale of {}, doubled after {} good steps", state_.scale,
                     options_.growth_steps);
}

}  // namespace zero::train
