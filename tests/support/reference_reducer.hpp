#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// PyTorch's own data parallelism, c10d::Reducer, the class behind DistributedDataParallel, for
/// tests that compare with it. It averages gradients by hooks of its own while backward runs.
///
/// It divides each rank's gradient by the world size first and adds in the order of Gloo's ring, so
/// that it equals ours to the last bit at 1 and 2 ranks and within rounding above.
class ReferenceReducer {
 public:
  /// Called by all ranks with the same parameters (trainable, with storage), in one bucket each of
  /// at most `bucket_bytes`. `communicator` must be a Gloo one, of any size (zero::Error
  /// otherwise), and outlive this.
  ReferenceReducer(const std::vector<at::Tensor>& parameters, Communicator& communicator,
                   std::size_t bucket_bytes = std::size_t{25} << 20);
  ~ReferenceReducer();

  /// Must be called between forward and backward with the loss. Gradients are averaged when
  /// backward() returns.
  void prepare_for_backward(const at::Tensor& loss);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero::dist
