#pragma once

// Private to common/zero/distributed.

#include <cstdint>
#include <vector>

#include <zero/distributed/backend.hpp>

namespace zero::dist {

/// A reduction in rank order, for backends. Rank p owns elements [bounds[p], bounds[p + 1]) of
/// `input`: it adds all ranks' contributions to them in rank order, divides the sum by the divisor
/// and writes `output`, which may be its own piece of `input`. In an all-reduce (`gather`) all sums
/// return into `input`.
struct Pieces {
  /// Of a reduce (the root owns everything), all_reduce or reduce_scatter: see Backend::start().
  Pieces(const Call& call, int rank, int size, const at::Tensor& result, const at::Tensor& whole);

  std::int64_t length(int rank) const;
  std::int64_t offset(int rank) const;  ///< in bytes
  at::Tensor of(int rank) const;

  at::Tensor input;   ///< flat
  at::Tensor output;  ///< flat
  std::vector<std::int64_t> bounds;
  bool gather;
};

/// sum = the contributions, added in rank order and divided by the divisor. Tells
/// `call.not_finite` if it is not finite.
void add_up(const Call& call, const at::Tensor& sum, const std::vector<at::Tensor>& contributions);

/// Collectives between pairs of ranks (docs/benchmarks.md compares them with Gloo's own): it says
/// which part of a tensor goes to which rank. Derived classes carry the parts.
class PairwiseBackend : public Backend {
 public:
  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override;

  /// What a peer receives from this rank, or the tensor that a peer's data goes to.
  struct Part {
    int peer;
    at::Tensor tensor;
    std::int64_t offset = 0;  ///< of what comes in: bytes, in the peer's own `source`
  };

 protected:
  PairwiseBackend(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Broadcast, all-gather, all-to-all: peers receive `outgoing`, parts of `source`, and send
  /// `incoming`, parts of theirs.
  virtual WorkPtr exchange_parts(const Call& call, at::Tensor source, std::vector<Part> outgoing,
                                 std::vector<Part> incoming) = 0;
  virtual WorkPtr reduce_pieces(const Call& call, Pieces pieces) = 0;
  /// Operation::kSend to call.root, or Operation::kRecv from it; the tensor may be empty.
  virtual WorkPtr message(const Call& call, at::Tensor tensor) = 0;

 private:
  /// Broadcast, all-gather, all-to-all.
  WorkPtr exchange(const Call& call, const at::Tensor& output, const at::Tensor& input);

  int rank_;
  int size_;
};

}  // namespace zero::dist
