// expects: has not changed: copy_.* writes into it, an assignment changes the variable only
#include "00a.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

void all_reduce(Communicator& communicator, at::Tensor tensor) {
  const int ranks = communicator.size();
  const std::int64_t each = (tensor.numel() + ranks - 1) / ranks;
  at::Tensor padded = at::zeros({each * ranks});
  padded.narrow(0, 0, tensor.numel()).copy_(tensor);
  at::Tensor piece = at::empty({each});
  communicator.reduce_scatter(piece, padded, Purpose::kGradient, ReduceOp::kSum).wait();
  communicator.all_gather(padded, piece, Purpose::kGradient).wait();
  tensor = padded.narrow(0, 0, tensor.numel());  // wrong: the caller's tensor stays as it was
}
