#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// One rank of a world of any size, alone in its process. Nothing is sent and nobody waits: what
/// this rank holds and sends can be looked at for 512 ranks on one machine.
///
/// The other ranks are taken to be twins that do what this one does, with what a source says of
/// their bytes:
///   - exchange() gives this rank's text for everyone, so verify_same_on_all_ranks() never throws.
///   - An average leaves the tensor as it is, a sum is N times it; whoever would get a piece or the
///     whole of it gets just that.
///   - What is received (broadcast from another root, recv, the others' pieces of an all_gather)
///     comes from the source. Where there is none, or it does not know the tensor, it is what this
///     rank gave or had: an all_gather repeats this rank's piece, a broadcast changes nothing.
///   - In all_to_all every piece is the one that this rank would send to itself.
///
/// As with real ranks, only wait() makes a result visible, and a handle that nobody waits for ends
/// the process. Traffic is counted by the formulas of Communicator, to the byte what a real rank
/// counts. There are no receive buffers, so a peak lacks the scratch of real reductions. Time that
/// the source takes counts as exposed communication.
class FakeCommunicator final : public Communicator {
 public:
  /// Writes what the other ranks would send into `received` (contiguous, has storage), all of it;
  /// false where it does not know this tensor and has written nothing.
  using Source = std::function<bool(at::Tensor received)>;

  /// Throws zero::Error where `rank` is no rank of a world of `size`.
  FakeCommunicator(int rank, int size, Source source = {});

  void set_source(Source source) { source_ = std::move(source); }

  std::string transport() const override { return "none: a fake process group, nothing is sent"; }
  std::vector<std::string> exchange(const std::string& text) override;
  /// This rank's place in the group of `ranks`, as fake as this one, with the same source.
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const std::string& label) override;

  /// As a real group does, so that a step takes as many collectives. Nothing is added up here, so
  /// no gradient is ever found that is not finite.
  bool checks_gradients() const override { return size() > 1; }

 protected:
  WorkPtr do_broadcast(const Call& call, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call& call, at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr do_all_reduce(const Call& call, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const Call& call, at::Tensor output, at::Tensor input,
                            ReduceOp op) override;
  WorkPtr do_all_gather(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr do_send(const Call& call, at::Tensor tensor, int destination, int tag) override;
  WorkPtr do_recv(const Call& call, at::Tensor tensor, int source, int tag) override;

 private:
  bool receive_from_source(const at::Tensor& tensor) const { return source_ && source_(tensor); }
  void combine(const at::Tensor& tensor, ReduceOp op) const;
  void gather(const at::Tensor& output, const at::Tensor& input) const;
  WorkPtr when_waited_for(std::function<void()> effect) const;

  Source source_;
};

}  // namespace zero::dist
