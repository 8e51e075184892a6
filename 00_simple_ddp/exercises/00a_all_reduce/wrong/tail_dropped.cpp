// expects: of 7 elements the last 1 are not the sum: a tail is dropped
#include "00a.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

void all_reduce(Communicator& communicator, at::Tensor tensor) {
  const int ranks = communicator.size();
  const std::int64_t each = tensor.numel() / ranks;  // wrong: rounds down
  at::Tensor front = tensor.narrow(0, 0, each * ranks);
  at::Tensor piece = at::empty({each});
  communicator.reduce_scatter(piece, front, Purpose::kGradient, ReduceOp::kSum).wait();
  communicator.all_gather(front, piece, Purpose::kGradient).wait();
}
