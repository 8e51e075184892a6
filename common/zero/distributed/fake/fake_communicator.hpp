#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// One rank of a world of any size, alone in its process. It sends nothing and never waits: one
/// machine can show what a rank of 512 holds and sends.
///
/// The other ranks are assumed to do the same as this one; a source can supply the bytes that they
/// send:
///   - exchange() returns this rank's text for every rank, so verify_same_on_all_ranks() never
///     throws.
///   - An average leaves the tensor as it is, a sum is N times it; a rank that would get a piece or
///     the whole of the result gets just that.
///   - Received data (a broadcast from another root, recv, the others' pieces of an all_gather)
///     comes from the source. Without a source, or for a tensor that it does not know, this rank's
///     own data is used: an all_gather repeats this rank's piece (of bytes: the others' are 0), a
///     broadcast changes nothing.
///   - Activations from another rank (recv for Purpose::kActivation) are ones.
///   - In all_to_all every piece is the one that this rank would send to itself.
///
/// A group that is split from it is fake as well, so there may be a Mesh of it. On a data axis the
/// values are those of ranks with the same data. On a tensor axis they are not those of any model:
/// the ranks there add up different terms of one sum, for which N times this rank's own term
/// stands. Shapes, bytes held and bytes sent do not depend on values.
///
/// As with real ranks, only wait() makes a result visible, and a handle that is never waited on
/// ends the process. Traffic is counted by the formulas of Communicator, to the byte as on a real
/// rank. There are no receive buffers, so memory peaks lack the scratch of real reductions. Time
/// spent in the source counts as exposed communication.
class FakeCommunicator final : public Communicator {
 public:
  /// Writes what the other ranks would send into all of `received` (contiguous, has storage).
  /// Returns false if it does not know this tensor; then it has written nothing.
  using Source = std::function<bool(at::Tensor received)>;

  /// `ranks_per_host`: how many ranks with consecutive numbers are on a host (host_of()); 0: all.
  /// Throws zero::Error unless 0 <= rank < size, or if the last host would have fewer ranks.
  FakeCommunicator(int rank, int size, Source source = {}, int ranks_per_host = 0);

  /// The source of this rank in all groups that have been or will be split from this communicator,
  /// from one of its groups, or from the one that it was split from.
  void set_source(Source source) { *source_ = std::move(source); }

  std::string transport() const override { return "none: a fake process group, nothing is sent"; }
  std::vector<std::string> exchange(const std::string& text) override;

  /// The same as in a real group, so that a step has the same number of collectives. Nothing is
  /// added up here, so no gradient is ever found not finite.
  bool checks_gradients() const override { return size() > 1; }

 protected:
  WorkPtr do_broadcast(const Call& call, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call& call, at::Tensor tensor, int root, int divisor) override;
  WorkPtr do_all_reduce(const Call& call, at::Tensor tensor, int divisor) override;
  WorkPtr do_reduce_scatter(const Call& call, at::Tensor output, at::Tensor input,
                            int divisor) override;
  WorkPtr do_all_gather(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr do_message(const Call& call, at::Tensor tensor, int peer) override;
  /// This rank in the group of `ranks`: a FakeCommunicator that shares the source.
  std::unique_ptr<Communicator> do_split(const std::vector<int>& ranks,
                                         const std::string& label) override;

 private:
  bool receive_from_source(const at::Tensor& tensor) const {
    return *source_ && (*source_)(tensor);
  }
  void combine(const at::Tensor& tensor, int divisor) const;
  void gather(const at::Tensor& output, const at::Tensor& input) const;

  std::shared_ptr<Source> source_;  // one for all groups of this rank
};

}  // namespace zero::dist
