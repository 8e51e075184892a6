#pragma once

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Gives every optimizer that `optimizer` makes float32 master weights, for mixed precision
/// (Micikevicius et al. 2018, section 3.1).
///
/// A parameter of bfloat16 or float16 has 8 or 11 bits of precision. An update smaller than half of
/// its last bit, as most are, would be rounded away, and the model would stop learning. So the
/// optimizer keeps a float32 copy of each 2-byte parameter that it holds, updates the copy, and
/// rounds it into the parameter. Parameters of other types are updated as usual.
///
/// Bytes per parameter, with AdamW: 2 and 2 for the model and its gradient, and 12 here: master
/// weight and two moments, 4 each. All are charged to kOptimizer.
///
/// A master weight is made at the first update from the parameter's value at that time, so a rank
/// that narrows its optimizer before holds none for parameters of other owners. (io::load_weights()
/// makes it sooner, from a file's values before they are rounded.) From then on the
/// parameter follows its master. If the parameter was changed in place since (its version
/// counter tells), each master element that no longer rounds to its value takes that value.
/// A value written through data() does not count and is lost at the next step.
///
/// step() widens some gradients at a time, divided by the scale of set_gradient_scale() (in
/// float32: a power of two rounds nothing). Scratch, charged to kOther: 4 bytes for each element of
/// the largest piece that it holds, or of a sixteenth of all that it updates if that is more; after
/// a write into a parameter, 11 bytes for each of its elements if that is more. Gradients of
/// float32 parameters are copied only if the scale is not 1. The time of a step grows with the
/// number of parameters, not with its square. On a GPU the host waits only after a write.
///
/// state() has "master" in addition to the states of the inner optimizer, all float32 and flat. The
/// kind in settings() ends in " with master weights" if any of the parameters first given had
/// 2-byte elements.
OptimizerFactory with_master_weights(OptimizerFactory optimizer);

}  // namespace zero::optim
