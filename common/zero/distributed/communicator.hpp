#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/traffic.hpp>
#include <zero/distributed/work.hpp>

/// Communication between ranks. Nothing outside this folder names c10d, Gloo or NCCL.
namespace zero::dist {

class CallLog;

/// How contributions are combined. The average is the sum, divided once by the world size.
enum class ReduceOp : std::uint8_t { kSum, kAverage };

/// In which order contributions are added.
enum class ReductionOrder : std::uint8_t {
  /// Every element is ((r0 + r1) + r2) + …, whatever buffer it travels in. Floating-point addition
  /// is not associative; the fixed order gives every sharding the same bits at any world size.
  /// bfloat16 and float16 are added in float32, divided, and rounded once.
  kRankOrdered,
  /// The backend's own order. Gloo's ring starts at another rank for every chunk.
  kNative,
};

/// The type in which gradients of 2 bytes (bfloat16, float16) travel to where they are added. All
/// other types travel and are added unchanged.
enum class ReduceType : std::uint8_t {
  /// Unchanged. In rank order they are then added in float32 and rounded once. A native reduction
  /// adds them in their own type and rounds after each addition, except float16: its range is too
  /// small for that, so it is widened to float32.
  kOwn,
  /// As float32, rounded once after the sum: twice the bytes on the wire, and a float32 copy of the
  /// reduced tensor until the reduction ends. In rank order it has the same bits as kOwn.
  kFloat32,
};
std::string_view name(ReduceType type);

/// Operation and type of a reduction. Converts from a ReduceOp: 2-byte types then travel unchanged.
struct Reduction {
  // NOLINTNEXTLINE(google-explicit-constructor): reduce(…, ReduceOp::kSum) reads best.
  Reduction(ReduceOp o = ReduceOp::kAverage, ReduceType t = ReduceType::kOwn) : op(o), type(t) {}
  /// The last of several reductions, each inside other groups of the same ranks: what is added are
  /// sums, and `ranks` is the number of ranks in all of them, by which the result is divided once.
  static Reduction average_of_sums(int ranks, ReduceType type) {
    Reduction last(ReduceOp::kAverage, type);
    last.ranks = ranks;
    return last;
  }
  /// What the sum is divided by in a group of `size` ranks.
  int divisor(int size) const { return op == ReduceOp::kSum ? 1 : ranks > 0 ? ranks : size; }

  ReduceOp op;
  ReduceType type;
  int ranks = 0;  ///< 0: those of the group
};

/// A group of ranks and its collectives. All ranks of the group must call the same operations in
/// the same order with the same shapes, dtypes, roots and purposes. Each call returns at once, with
/// the transfer in flight; do not read or write the tensors before waiting on the handle. Tensors
/// must be contiguous (zero::Error otherwise, before anything is sent). Tensors of 0 elements are
/// allowed everywhere. With one rank nothing is sent and every operation is the identity.
class Communicator {
 public:
  using Call = dist::Call;
  using WorkPtr = std::unique_ptr<Work::Backend>;

  /// Called with a sum that is not finite, the contributions to it by rank, and whether the
  /// contribution that the sum has overwritten, if any, was finite.
  using Watch =
      std::function<void(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
                         bool overwritten_finite)>;

  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  ReductionOrder order() const { return order_; }
  /// How bytes travel, as text for people: "one copy within the host", "TCP (rank 1: …)".
  virtual std::string transport() const = 0;

  /// The host of a rank, as a number that is the same for all ranks of the host. connect() finds it
  /// out; elsewhere all ranks are on one host.
  int host_of(int rank) const {
    return hosts_.empty() ? 0 : hosts_[static_cast<std::size_t>(rank)];
  }
  /// Sets the host of every rank, by rank, for traffic from now on and for groups that are split
  /// off later. Throws zero::Error if there is not one for each rank.
  void set_hosts(std::vector<int> hosts);

  /// Copies `tensor` (any shape) of rank `root` to all ranks, in place. Root sends it N-1 times.
  Work broadcast(at::Tensor tensor, int root, Purpose purpose);

  /// Combines `tensor` of all ranks into that of `root`, in place; the tensors of the other ranks
  /// do not change. Every rank except the root sends it once.
  Work reduce(at::Tensor tensor, int root, Purpose purpose, Reduction reduction = {});

  /// Combines `tensor` of all ranks, in place on all of them. Sends 2 (N-1)/N of it (a
  /// reduce-scatter and an all-gather of its pieces; exactly: see all_reduce_bytes).
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

  /// Blocks until all operations waited on are complete on the device too, those of groups split
  /// from this one included; throws as wait() does. On a GPU wait() only orders later work of the
  /// stream behind the result: without this, a host that reads the result may block forever on a
  /// lost rank. Does nothing on other devices.
  void synchronize();

  /// Blocks until every rank has passed its text; returns the texts in rank order. For start-up
  /// checks: slow, through the store. Throws zero::Error that names the ranks that were too late.
  virtual std::vector<std::string> exchange(const std::string& text) = 0;

  /// Blocks until all ranks have called it; throws zero::Error on every rank if the texts differ,
  /// naming `what`, two ranks and their texts.
  void verify_same_on_all_ranks(const std::string& what, const std::string& text);

  /// Makes a group of some of these ranks, in the order given (their ranks there are 0, 1, …).
  /// Called by exactly the ranks named, with the same list and the same `label` (unique per group).
  /// Its transport is the fastest for these ranks, whatever that of all ranks is. What the group
  /// sends and waits for counts for this communicator, too, which must outlive it.
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks, const std::string& label);

  /// Bytes of one element of `dtype` as it is sent to a reduction of type `type`.
  std::int64_t reduced_element_size(at::ScalarType dtype, ReduceType type) const;

  /// Whether reductions for Purpose::kGradient check their results for infinity and NaN while
  /// adding (take_not_finite()). False otherwise: the caller has to check.
  virtual bool checks_gradients() const { return false; }

  /// Returns, by rank, whether that rank contributed a value that was not finite to a gradient, in
  /// the part that this rank added up. Covers all reductions waited on since the last call. An
  /// overflow of the sum alone counts as this rank's. Acts on this rank alone.
  std::vector<bool> take_not_finite();
  /// Notes that rank `rank` contributed such a value. For sums that are made outside of this class.
  void note_not_finite(int rank);

  /// What this rank has sent since it was connected, in groups split from this one too.
  const Traffic& traffic() const { return traffic_; }

  /// Seconds that this rank has spent inside wait() of any handle, in progress(), and starting
  /// operations: communication that nothing hid.
  double exposed_seconds() const { return times_.exposed_seconds(); }

  /// Seconds in which at least one operation of this rank was in flight: started, and its wait()
  /// not yet over. Minus the exposed seconds, this is the time that other work could hide; how much
  /// data moved in it depends on the transport.
  double in_flight_seconds() const { return times_.in_flight_seconds(); }

  /// From now on adds the activities of this rank to `activities`, which must outlive it or
  /// the next call; null ends recording. Operations in flight are added when they end.
  void record(std::vector<Activity>* activities) { times_.record(activities); }

  /// Sets the training step that error messages name.
  void set_step(std::int64_t step) {
    parent_ != nullptr ? parent_->set_step(step) : void(step_ = step);
  }
  std::int64_t step() const { return parent_ != nullptr ? parent_->step() : step_; }

  /// Bytes that rank `rank` of `size` sends in an all-reduce of `elements` elements: its part of
  /// the reduce-scatter plus its part of the all-gather. Over all ranks the sum is 2 (N-1) times
  /// the tensor.
  static std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t element_size, int rank,
                                       int size);

 protected:
  Communicator(int rank, int size, ReductionOrder order, bool check_collectives)
      : rank_(rank), size_(size), order_(order), check_collectives_(check_collectives) {}

  // With one rank, and for tensors of 0 elements except in do_message(), these are not called.
  virtual WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) = 0;
  // Reductions divide the sum by `divisor`; 1 for a plain sum.
  virtual WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, int divisor) = 0;
  virtual WorkPtr do_all_reduce(const Call&, at::Tensor tensor, int divisor) = 0;
  virtual WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input,
                                    int divisor) = 0;
  virtual WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) = 0;
  virtual WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) = 0;
  /// Operation::kSend to `peer`, or Operation::kRecv from it.
  virtual WorkPtr do_message(const Call&, at::Tensor tensor, int peer) = 0;
  virtual void do_progress() {}
  virtual void do_synchronize() {}
  virtual std::unique_ptr<Communicator> do_split(const std::vector<int>& ranks,
                                                 const std::string& label) = 0;

  /// Throws zero::Error if the backend cannot take tensors of this device.
  virtual void check_device(const at::Tensor& /*tensor*/) const {}

  /// This rank's number among `ranks`. Throws zero::Error that names the group if it is not there.
  int rank_among(const std::vector<int>& ranks, const std::string& label) const;

  /// The bytes that every collective sends are counted by the formulas above. A backend that sends
  /// more adds the rest, with those of them that go to other hosts.
  void count(const Call& call, std::int64_t bytes, std::int64_t between_hosts = 0);
  /// Counts `bytes_to(peer)` for each other rank.
  void count_each(const Call& call, const std::function<std::int64_t(int peer)>& bytes_to);

  /// For backends that do the sums themselves; empty if the check is not needed.
  Watch watch(const Call& call);

  friend class CallScope;

  /// Records calls in `log` from now on; every rank of the group has a log.
  void set_call_log(std::shared_ptr<CallLog> log) { call_log_ = std::move(log); }

 private:
  Call begin(Operation operation, Purpose purpose, const at::Tensor& tensor, int root = -1);
  Work message(Operation operation, at::Tensor tensor, int peer, Purpose purpose);
  void count_call(Operation operation, Purpose purpose);
  std::string_view public_call() const;
  void progress_with_groups();
  void check_tensor(Operation operation, const at::Tensor& tensor) const;
  void check_rank(Operation operation, int peer) const;
  void check_pieces(Operation operation, const char* whole_is, const at::Tensor& whole,
                    const char* piece_is, const at::Tensor& piece, bool same_dtype = true) const;
  bool sends(const at::Tensor& tensor) const { return size_ > 1 && tensor.numel() > 0; }
  bool widens(at::ScalarType dtype, ReduceType type) const;
  at::Tensor widened(const at::Tensor& tensor, ReduceType type) const;
  void note_not_finite(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
                       bool overwritten_finite, bool adds_sums);

  int rank_;
  int size_;
  ReductionOrder order_;
  bool check_collectives_;
  std::shared_ptr<CallLog> call_log_;  // null for a single rank
  std::vector<int> hosts_;             // by rank; empty: one host
  Communicator* parent_ = nullptr;     // that this group was split from
  std::vector<int> ranks_;             // by rank: its number there
  std::vector<Communicator*> groups_;  // split from this one
  std::int64_t sequence_ = 0;
  std::int64_t step_ = -1;
  Traffic traffic_;
  WorkTimes times_;
  std::vector<bool> not_finite_;  // by rank; empty: all finite
};

/// While it lives, all communication of `communicator` belongs to the public function `name` (a
/// literal: "Engine::save"), unless an outer scope has named one already. Every collective and
/// exchange carries the name: ranks that wait for each other in different functions soon throw
/// zero::Error that names both, instead of waiting for the time limit.
class CallScope {
 public:
  CallScope(Communicator& communicator, std::string_view name);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  std::shared_ptr<CallLog> log_;
  std::string_view outer_;
};

/// What a rank has said.
struct RankText {
  int rank;
  std::string text;
};

/// Throws zero::Error if `texts` differ: it names `what`, two ranks, and the first line in which
/// they differ.
void expect_same(const std::string& what, const std::vector<RankText>& texts);

/// Returns `mine` of every rank, one after the other in rank order; all must have the same length.
/// Called by all ranks; blocks. Throws as Work::wait() does.
std::vector<double> all_gather_scalars(Communicator& communicator, std::vector<double> mine);

/// First element of piece `rank` when `elements` are cut into `size` pieces whose lengths differ by
/// at most one, longer ones first. piece_begin(n, N, N) is n.
std::int64_t piece_begin(std::int64_t elements, int rank, int size);

}  // namespace zero::dist
