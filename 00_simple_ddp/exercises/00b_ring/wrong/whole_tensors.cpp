// expects: rank 0 sends 96 bytes for 12 elements, .*whole tensors go round
#include "00b.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::Work;

void ring_all_reduce(Communicator& communicator, at::Tensor tensor) {
  const int ranks = communicator.size();
  const int next = (communicator.rank() + 1) % ranks;
  const int previous = (communicator.rank() + ranks - 1) % ranks;
  at::Tensor passed = tensor.clone();
  for (int round = 0; round < ranks - 1; ++round) {
    at::Tensor received = at::empty_like(tensor);
    Work send = communicator.send(passed, next, Purpose::kGradient);  // wrong: all of it each time
    communicator.recv(received, previous, Purpose::kGradient).wait();
    send.wait();
    tensor.add_(received);
    passed = received;
  }
}
