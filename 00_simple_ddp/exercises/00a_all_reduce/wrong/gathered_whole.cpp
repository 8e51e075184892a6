// expects: sends 0 bytes for 12 elements by reduce_scatter
#include "00a.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

void all_reduce(Communicator& communicator, at::Tensor tensor) {
  const int ranks = communicator.size();
  at::Tensor all = at::empty({ranks, tensor.numel()});
  communicator.all_gather(all, tensor, Purpose::kGradient).wait();  // wrong: N-1 whole tensors
  tensor.copy_(all.sum(0));
}
