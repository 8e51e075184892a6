#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/train/loop/loss_scale.hpp>

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

LossScale::LossScale(LossScaleOptions options) : options_(options), scale_(options.initial) {
  require_scale(options.initial);
  if (options.growth_steps < 1) {
    throw Error(fmt::format(
        "a loss scale that is doubled after {} good steps: it must be 1 or more of them",
        options.growth_steps));
  }
}

void LossScale::note_good_step() {
  // A restored state may count more good steps than this scale needs.
  if (good_steps_ < options_.growth_steps - 1) {
    ++good_steps_;
    return;
  }
  if (scale_ < kLargest) scale_ *= 2;
  good_steps_ = 0;
}

bool LossScale::note_overflow() {
  good_steps_ = 0;
  if (scale_ == 1.0) return false;
  scale_ /= 2;
  return true;
}

void LossScale::write_to(std::map<std::string, std::string>& notes) const {
  notes[kNote] = fmt::format("{} {}", scale_, good_steps_);
}

void LossScale::resume_from(const std::map<std::string, std::string>& notes) {
  const auto found = notes.find(kNote);
  if (found == notes.end()) return;
  double scale = 0;
  std::int64_t good_steps = -1;
  std::istringstream stream(found->second);
  if (!(stream >> scale >> good_steps) || !(stream >> std::ws).eof() || good_steps < 0) {
    throw Error(
        fmt::format("'{}' is no state of a loss scale: the scale and a number of good steps from 0",
                    found->second));
  }
  require_scale(scale);
  scale_ = scale;
  good_steps_ = good_steps;
}

std::string LossScale::describe() const {
  return fmt::format("a loss scale of {}, doubled after {} good steps", scale_,
                     options_.growth_steps);
}

}  // namespace zero::train
