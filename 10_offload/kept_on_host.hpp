#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include <zero/nn/checkpoint.hpp>

namespace zero {

/// For nn::CheckpointOptions::keep: inputs of checkpoints in pinned memory of the host, for all
/// checkpoints of a model. Begins to copy `inputs`, at least one, all of one device, on a side
/// stream, behind the work that the current stream has; it runs beside the next checkpoint's
/// forward. In backward they come back beside the backward of the checkpoint after it.
///
/// The next call of the thread frees them on the device, when the current stream has waited for
/// their copy; so those of the last call stay there. If one was changed in place before that, that
/// call or take() throws zero::Error. The device has the inputs of one checkpoint between forward
/// and backward, and of two in them: of L inputs of A bytes at most 2 A, the host L A, and
/// (2 L - 1) A bytes cross the bus, because the last ones need not come back. The host never waits.
std::shared_ptr<nn::KeptInputs> keep_on_host(const std::vector<at::Tensor>& inputs);

}  // namespace zero
