#pragma once

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Gives every optimizer that `optimizer` makes float32 master weights, for mixed precision
/// (Micikevicius et al. 2018, section 3.1).
///
/// A parameter of bfloat16 or float16 has 8 or 11 bits of precision. An update that is smaller than
/// half of its last bit, as most are, would be rounded away, and the model would stop to learn. So
/// the optimizer keeps a float32 copy of each 2-byte parameter that it holds, updates that, and
/// rounds it into the parameter. Parameters of other types are updated as without it.
///
/// Bytes a parameter, with AdamW: 2 and 2 for the model and its gradient, here 12: master weight
/// and two moments, 4 each. All are kOptimizer's.
///
/// A master weight is made at the first update from the value that the parameter has then, so that
/// a rank which narrows its optimizer before holds none for what others own. From then on the
/// parameter follows its master: a value written into the parameter alone is lost at the next step.
///
/// step() widens some gradients at a time, divided by the scale of set_gradient_scale() (in
/// float32: a power of two rounds nothing). Scratch, charged to kOther: 4 bytes for each element of
/// the largest piece that it holds, or of a sixteenth of all that it updates if that is more.
/// Float32 parameters have their gradients copied only where the scale is not 1. The time of a step
/// grows with the number of parameters, not with its square. On a GPU the host waits for nothing.
///
/// state() has "master" beside the states of the optimizer inside, all float32 and flat. settings()
/// have " with master weights" in their kind where any of the parameters first given was of 2
/// bytes.
OptimizerFactory with_master_weights(OptimizerFactory optimizer);

}  // namespace zero::optim
