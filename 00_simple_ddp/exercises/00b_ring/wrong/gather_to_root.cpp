// expects: rank 0 sends 96 bytes for 12 elements, .*everything passes through it
#include "00b.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::Work;

void ring_all_reduce(Communicator& communicator, at::Tensor tensor) {
  if (communicator.rank() != 0) {
    communicator.send(tensor, 0, Purpose::kGradient).wait();
    communicator.recv(tensor, 0, Purpose::kGradient).wait();
    return;
  }
  at::Tensor received = at::empty_like(tensor);
  for (int rank = 1; rank < communicator.size(); ++rank) {
    communicator.recv(received, rank, Purpose::kGradient).wait();
    tensor.add_(received);
  }
  for (int rank = 1; rank < communicator.size(); ++rank) {
    communicator.send(tensor, rank, Purpose::kGradient).wait();  // wrong: N-1 tensors from one rank
  }
}
