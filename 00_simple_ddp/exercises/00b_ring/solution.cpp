#include "00b.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::Work;

namespace {

// Piece `index` of the tensor, which may be any whole number: counted modulo the number of ranks.
at::Tensor piece(const at::Tensor& tensor, int index, int ranks) {
  index = (index + 2 * ranks) % ranks;
  const std::int64_t begin = zero::dist::piece_begin(tensor.numel(), index, ranks);
  return tensor.narrow(0, begin, zero::dist::piece_begin(tensor.numel(), index + 1, ranks) - begin);
}

}  // namespace

void ring_all_reduce(Communicator& communicator, at::Tensor tensor) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  for (int round = 0; round < ranks - 1; ++round) {
    const at::Tensor mine = piece(tensor, rank - round - 1, ranks);
    const at::Tensor received = at::empty_like(mine);
    Work send = communicator.send(piece(tensor, rank - round, ranks), next, Purpose::kGradient);
    communicator.recv(received, previous, Purpose::kGradient).wait();
    send.wait();
    mine.add_(received);
  }
  for (int round = 0; round < ranks - 1; ++round) {
    Work send = communicator.send(piece(tensor, rank + 1 - round, ranks), next, Purpose::kGradient);
    communicator.recv(piece(tensor, rank - round, ranks), previous, Purpose::kGradient).wait();
    send.wait();
  }
}
