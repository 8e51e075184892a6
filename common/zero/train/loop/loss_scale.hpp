#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace zero::train {

/// How a loss scale starts and changes.
struct LossScaleOptions {
  double initial = 65536;            ///< 2^16; a power of two from 1 to 2^100
  std::int64_t growth_steps = 2000;  ///< good steps in a row before it is doubled; at least 1
};

/// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), for float16.
///
/// The smallest number that float16 holds is 2^-24 (6e-8), and many gradients are smaller: they
/// would be rounded to zero. So the loss is multiplied by a large scale before backward, every
/// gradient comes out larger by that factor, and the optimizer divides by it in float32. The scale
/// is a power of two, so that neither operation rounds. If it is too large, a gradient overflows to
/// infinity: the step is skipped and the scale halved; after many good steps it is doubled.
///
/// All ranks must make the same calls (train::Step does), and so have the same scale.
class LossScale {
 public:
  /// Throws zero::Error for a scale that is not a power of two from 1 to 2^100, or fewer than 1
  /// step.
  explicit LossScale(LossScaleOptions options = {});

  double value() const { return scale_; }
  /// Call after a step that updated.
  void note_good_step();
  /// Call after a step that was skipped: halves the scale. Returns false if the scale is 1 and
  /// stays 1: then it is not the cause of the overflow.
  bool note_overflow();

  /// Adds the scale and the good steps to the notes of a checkpoint.
  void write_to(std::map<std::string, std::string>& notes) const;
  /// Goes on from there, if the notes have them. Throws zero::Error, and changes nothing, for a
  /// state that cannot be.
  void resume_from(const std::map<std::string, std::string>& notes);

  /// The options, as text, to compare between ranks.
  std::string describe() const;

 private:
  LossScaleOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;  // in a row, since the scale last changed
};

}  // namespace zero::train
