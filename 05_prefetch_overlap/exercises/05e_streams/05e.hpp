#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <vector>

#include <zero/distributed/work.hpp>

namespace exercise_05e {

/// A weight on its way: nobody may read it before the wait() of its gather.
struct Gathered {
  at::Tensor weight = {};
  zero::dist::Work gather = {};
};

/// A rank with a device. What it calls is queued there, on the stream that is current, and returns
/// at once. Layers are numbered from 0.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual int layers() const = 0;
  /// The stream that computes, which is current when a function below is called.
  virtual c10::Stream computing() const = 0;
  /// Starts to gather the weight of a layer. On a device the wait() of the handle makes the current
  /// stream wait, and not the host.
  virtual Gathered start_gather(int layer) = 0;
  /// Queues a layer and gives its output.
  virtual at::Tensor forward(int layer, const at::Tensor& x, const at::Tensor& weight) = 0;
  /// Queues the backward of a layer and gives the gradient of its weight, in bfloat16.
  virtual at::Tensor backward(int layer) = 0;
  /// Averages a float32 tensor over all ranks and gives this rank's shard. What the current stream
  /// gets later runs behind that.
  virtual at::Tensor reduce(const at::Tensor& gradient) = 0;
};

/// What an answer consists of.
struct Answer {
  /// Runs x through all layers. While a layer computes, the next weight is gathered.
  at::Tensor (*forward)(Rank& rank, at::Tensor x);
  /// Runs all layers backward. While a layer computes, the gradient before it is reduced on `side`.
  /// Gives the shards, that of the last layer first, which the computing stream then may use.
  std::vector<at::Tensor> (*backward)(Rank& rank, c10::Stream side);
  /// The mean of losses, numbers on the device, as the host knows it.
  float (*mean)(Rank& rank, const std::vector<at::Tensor>& losses);
};

}  // namespace exercise_05e
