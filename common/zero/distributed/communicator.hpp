#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/not_finite.hpp>
#include <zero/distributed/reduction.hpp>
#include <zero/distributed/traffic.hpp>
#include <zero/distributed/work.hpp>

/// Communication between ranks. Nothing else in the library names c10d, Gloo or
/// NCCL, but memory/cuda_memory.cpp.
namespace zero::dist {

class Backend;
class CallLog;
struct Connection;

/// A group of ranks and its collectives. All ranks of the group must call the same operations in
/// the same order with the same shapes, dtypes, roots and purposes; if they do not, all of them
/// soon throw zero::Error that names two of the calls, or, on devices, wait for the time limit or
/// take each other's bytes (matches_calls()). Each call returns at once, with the transfer
/// in flight; do not read or write the tensors before waiting on the handle. Tensors must be
/// contiguous (zero::Error otherwise, before anything is sent). Tensors of 0 elements are allowed
/// everywhere. With one rank nothing is sent and every operation is the identity.
class Communicator final {
 public:
  /// Of what a backend has connected: connect(), launch_ranks() and split() make it.
  explicit Communicator(Connection connection);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Which rank of the world rank `rank` of this group is: of the communicator that was not split
  /// from another. Messages name ranks by it.
  int world_rank(int rank) const;
  /// The communicator that was not split from another.
  const Communicator& root() const { return parent_ != nullptr ? parent_->root() : *this; }
  ReductionOrder order() const;
  /// How bytes travel, as text for people: "one copy within the host", "TCP (rank 1: …)".
  std::string transport() const;

  /// The host of a rank, as a number that is the same for all ranks of the host: see connect().
  int host_of(int rank) const;
  /// Sets the host of every rank, by rank: for traffic, and for groups that are split off later.
  /// Tensors go on as before. Called by all ranks with the same hosts. Throws zero::Error if there
  /// is not one for each rank.
  void set_hosts(std::vector<int> hosts);

  /// Copies `tensor` (any shape) of rank `root` to all ranks, in place. Root sends it N-1 times.
  Work broadcast(at::Tensor tensor, int root, Purpose purpose);

  /// Combines `tensor` of all ranks into that of `root`, in place; the tensors of the other ranks
  /// do not change. Every rank except the root sends it once.
  Work reduce(at::Tensor tensor, int root, Purpose purpose, Reduction reduction = {});

  /// Combines `tensor` of all ranks, in place on all of them. Sends 2 (N-1)/N of it (a
  /// reduce-scatter and an all-gather of its pieces; exactly: see all_reduce_bytes()).
  Work all_reduce(at::Tensor tensor, Purpose purpose, Reduction reduction = {});
  /// The same from `input` to `output`, of as many elements; `input` is lost. `output` may have 2
  /// bytes an element where `input` is float32: the result is then rounded to it, once.
  Work all_reduce(at::Tensor output, at::Tensor input, Purpose purpose, Reduction reduction = {});

  /// `input` holds N equal pieces, one after the other; piece r, combined over all ranks, becomes
  /// `output` of rank r. `output` may be that piece of `input`. Sends (N-1)/N of `input`. With
  /// ReduceType::kFloat32 and an `input` of 2 bytes an element, `output` may be float32: it then
  /// gets the sum before it is rounded.
  Work reduce_scatter(at::Tensor output, at::Tensor input, Purpose purpose,
                      Reduction reduction = {});

  /// `input` of rank r becomes piece r of every rank's `output` (N times as large). `input` may be
  /// that piece of `output`. Sends `input` N-1 times. With /*copy_own_chunk=*/false this rank's own
  /// piece of `output` stays as it is, or becomes `input`: the backend decides.
  Work all_gather(at::Tensor output, at::Tensor input, Purpose purpose, bool copy_own_chunk = true);

  /// Piece p of rank r's `input` becomes piece r of rank p's `output`; both hold N equal pieces and
  /// may not overlap.
  Work all_to_all(at::Tensor output, at::Tensor input, Purpose purpose);

  /// One message to one other rank, and its receipt. Messages of one pair arrive in order.
  Work send(at::Tensor tensor, int destination, Purpose purpose);
  Work recv(at::Tensor tensor, int source, Purpose purpose);

  /// Blocks until all ranks have called it. Unlike the others it is complete when it returns.
  void barrier();

  /// Advances operations in flight as far as possible without waiting for a peer, so that a later
  /// wait() has less to do; those of groups split from this one, too. Only needed between ranks of
  /// one host, which copy from each other inside wait() and progress(); Gloo and NCCL have threads
  /// and streams for that.
  void progress();

  /// Blocks until all operations waited on are complete on the device too: those of this
  /// communicator, of the one that it was split from, and of all other groups split from it. Throws
  /// as wait() does. On a GPU wait() only orders later work of the stream behind the result: call
  /// this before the host reads what depends on it, or a lost rank may leave garbage there. Does
  /// nothing on other devices.
  void synchronize();

  /// Blocks until every rank has passed its text; returns the texts in rank order. For start-up
  /// checks: CPU tensors carry it. Counts as one call for Purpose::kSetup, without bytes. Throws
  /// zero::Error that names the ranks that were too late.
  std::vector<std::string> exchange(const std::string& text);

  /// Makes a group of some of these ranks, in the order given (their ranks there are 0, 1, …).
  /// Called by exactly the ranks named, with the same list and the same `label` (unique per group).
  /// Its transport is the fastest for these ranks, whatever that of all ranks is. What the group
  /// sends and waits for counts for this communicator, too, which must outlive it.
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks, const std::string& label);

  /// Whether ranks in different collectives wait for each other, and throw: NCCL would take the
  /// bytes of one for those of the other.
  bool matches_calls() const;

  /// Bytes of one element of `dtype` as it is sent to a reduction of type `type`.
  std::int64_t reduced_element_size(at::ScalarType dtype, ReduceType type) const;

  /// Whether reductions for Purpose::kGradient check their results for infinity and NaN while
  /// adding, and note them in not_finite(). False otherwise: the caller has to check.
  bool checks_gradients() const;
  NotFinite& not_finite() { return not_finite_; }

  /// What this rank has sent since it was connected, in groups split from this one too.
  const Traffic& traffic() const { return traffic_; }
  /// How long this rank has waited, and for what: of root().
  WorkTimes& times() { return parent_ != nullptr ? parent_->times() : times_; }
  const WorkTimes& times() const { return root().times_; }

  /// Sets the training step that error messages name, in groups split from this one too.
  void set_step(std::int64_t step);
  std::int64_t step() const { return parent_ != nullptr ? parent_->step() : step_; }

  /// Puts `other` in the place of the backend of CPU tensors and returns that, for tests that watch
  /// or disturb what is sent.
  std::unique_ptr<Backend> replace_backend(std::unique_ptr<Backend> other);

 private:
  friend class CallScope;

  Call begin(Operation operation, Purpose purpose, const at::Tensor& tensor, int root = -1);
  Call begin_reduction(Operation operation, Purpose purpose, const at::Tensor& wide,
                       const Reduction& reduction, int root = -1);
  Work message(Operation operation, at::Tensor tensor, int peer, Purpose purpose);
  Backend& backend_of(Operation operation, const at::Tensor& tensor) const;
  template <typename BytesTo>
  std::unique_ptr<Work::Pending> start(const Call& call, const at::Tensor& output,
                                       const at::Tensor& input, const BytesTo& bytes_to);
  void count(const Call& call, std::int64_t calls, std::int64_t bytes, std::int64_t between_hosts);
  template <typename BytesTo>
  void count_bytes(const Call& call, const BytesTo& bytes_to);
  CallLog* call_log() const;
  Running running() const;
  void with_groups(void (Backend::*does)());
  void check_rank(Operation operation, int peer) const;
  void check_pieces(Operation operation, const char* whole_is, const at::Tensor& whole,
                    const char* piece_is, const at::Tensor& piece, bool same_dtype = true) const;
  bool sends(const at::Tensor& tensor) const;
  bool widens(at::ScalarType dtype, ReduceType type) const;
  at::Tensor widened(const at::Tensor& tensor, ReduceType type) const;

  std::unique_ptr<Connection> connection_;
  int rank_;
  int size_;
  Communicator* parent_ = nullptr;     // that this group was split from
  std::vector<Communicator*> groups_;  // split from this one
  std::int64_t sequence_ = 0;
  std::int64_t step_ = -1;
  Traffic traffic_;
  WorkTimes times_;
  NotFinite not_finite_;
};

/// While it lives, all communication of `communicator` belongs to the public function `name` (a
/// literal: "Engine::save"), unless an outer scope has named one already. Every collective and
/// exchange carries the name: ranks that wait for each other in different functions soon throw
/// zero::Error that names both, instead of waiting for the time limit. Those for
/// Purpose::kParameter also carry the name of the unit `unit`, if it is not empty, or that of the
/// outer scope: ranks that gather different units of the same size would else take each other's
/// bytes. `unit` outlives the scope.
class CallScope {
 public:
  CallScope(Communicator& communicator, std::string_view name, std::string_view unit = {});
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  CallLog* log_;  // of the communicator, which outlives it; null: it has none
  Running outer_;
};

}  // namespace zero::dist
