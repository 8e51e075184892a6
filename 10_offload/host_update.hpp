#pragma once

// Private to this folder.

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Makes an optimizer that updates parameters of a device on the host (ZeRO-Offload, Ren et al.
/// 2021, section 4.1). An inner one, made by `make`, holds a twin of each parameter in page-locked
/// memory, and has its states on the host. Gradients come by take_gradients(), while backward runs;
/// step() updates the twins, a part of them after the other, and each part goes back to the device
/// while the next one is updated.
///
/// All copies are made on a stream of their own. It waits for the current stream before each; the
/// current stream waits for it in finish_taking() and at the end of step(). The host waits in
/// step(), unless it has waited for the current stream since finish_taking().
std::unique_ptr<Optimizer> update_on_host(const OptimizerFactory& make,
                                          const std::vector<at::Tensor>& parameters);

}  // namespace zero::optim
