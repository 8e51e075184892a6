#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/traffic.hpp>

/// Ranks talking to each other. Nothing outside this folder names c10d, Gloo or NCCL.
namespace zero::dist {

class CallLog;

/// How contributions are combined. The average is the sum, divided once by the world size.
enum class ReduceOp : std::uint8_t { kSum, kAverage };

/// In which order contributions are added.
enum class ReductionOrder : std::uint8_t {
  /// Every element is ((r0 + r1) + r2) + …, whatever buffer it travels in. Floating-point addition
  /// is not associative, so this is what makes every sharding give the same bits at any world size.
  /// bfloat16 and float16 are added in float32, divided, and rounded once.
  kRankOrdered,
  /// Whatever the backend does. Gloo's ring starts at another rank for every chunk.
  kNative,
};

/// In which type gradients of 2 bytes (bfloat16, float16) travel to where they are added. All other
/// types travel and are added as they are.
enum class ReduceType : std::uint8_t {
  /// As they are. In rank order they are then added in float32 and rounded once. A native reduction
  /// adds them as they are and rounds after each addition, but for float16, whose range is too
  /// small for that: it is widened all the same.
  kOwn,
  /// As float32, rounded once after the sum: twice the bytes on the wire, and a float32 copy
  /// of what is reduced for as long as that takes. In rank order it has the same bits as kOwn.
  kFloat32,
};
std::string_view name(ReduceType type);

/// What a reduction does. An operation alone converts: tensors of 2-byte types then travel as they
/// are.
struct Reduction {
  // NOLINTNEXTLINE(google-explicit-constructor): reduce(…, ReduceOp::kSum) reads best.
  Reduction(ReduceOp o = ReduceOp::kAverage, ReduceType t = ReduceType::kOwn) : op(o), type(t) {}
  ReduceOp op;
  ReduceType type;
};

/// A stretch of time in which a communicator was at work on this rank, for traces.
struct Activity {
  enum class Kind : std::uint8_t {
    kInFlight,  ///< a collective, from its start to the return of its wait(), or wait_output()
    kExposed,   ///< the calling thread in the start of one, in wait(), or in progress()
  };
  using TimePoint = std::chrono::steady_clock::time_point;

  Kind kind;
  std::string name;    ///< "all_gather parameter", "wait all_gather parameter", "progress"
  std::int64_t bytes;  ///< of the tensor
  TimePoint begin;
  TimePoint end;
};

/// A collective that has been started. It must be waited on: only wait() makes the result visible,
/// and parts of the work (the sums) are done inside it. Move-only. Destroying a handle that nobody
/// waited on ends the process, unless an exception is already on its way.
class Work {
 public:
  /// What a backend does to finish.
  class Backend {
   public:
    virtual ~Backend() = default;
    virtual void wait() = 0;
    /// See Work::wait_output(); whether there is something left for wait().
    virtual bool wait_output() {
      wait();
      return false;
    }
  };

  Work() = default;  ///< nothing to wait for
  explicit Work(std::unique_ptr<Backend> work) : work_(std::move(work)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept;
  ~Work();

  /// Blocks until the operation is complete on this rank. Throws zero::Error when a peer went away,
  /// when the time limit passed, or when ranks disagreed; the group is unusable afterwards. Waiting
  /// again does nothing.
  void wait();

  /// Blocks until this rank's results are there to be read, though others may still read what this
  /// rank gave: nothing that the operation was given may be written, or given up, before wait() is
  /// called as well. Throws as wait() does. Where the transport makes no difference it is wait().
  void wait_output();

  /// False once waited on.
  bool active() const { return work_ != nullptr; }

 private:
  std::unique_ptr<Backend> work_;
};

/// A group of ranks and its collectives. All ranks of the group must call the same operations in
/// the same order with the same shapes, dtypes, roots and purposes. Each call returns at once, with
/// the transfer in flight; tensors may be neither read nor written before the handle was waited on,
/// and must be contiguous (zero::Error otherwise, before anything is sent). Tensors of 0 elements
/// are allowed everywhere. With one rank nothing is sent and every operation is the identity.
class Communicator {
 public:
  using WorkPtr = std::unique_ptr<Work::Backend>;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  ReductionOrder order() const { return order_; }
  /// How bytes travel, for people to read: "one copy within the host", "TCP (rank 1: …)".
  virtual std::string transport() const = 0;

  /// `tensor` (any shape) of rank `root` reaches all ranks, in place. Root sends it N-1 times.
  Work broadcast(at::Tensor tensor, int root, Purpose purpose);

  /// Combines `tensor` of all ranks into that of `root`, in place; the others' stay as they are.
  /// Every rank but the root sends it once.
  Work reduce(at::Tensor tensor, int root, Purpose purpose, Reduction reduction = {});

  /// Combines `tensor` of all ranks, in place on all of them. Sends 2 (N-1)/N of it (a
  /// reduce-scatter and an all-gather of its pieces; exactly: see all_reduce_bytes).
  Work all_reduce(at::Tensor tensor, Purpose purpose, Reduction reduction = {});

  /// `input` holds N equal pieces, one after the other; piece r, combined over all ranks, becomes
  /// `output` of rank r. `output` may be that piece of `input`. Sends (N-1)/N of `input`.
  Work reduce_scatter(at::Tensor output, at::Tensor input, Purpose purpose,
                      Reduction reduction = {});

  /// `input` of rank r becomes piece r of every rank's `output` (N times as large). `input` may be
  /// that piece of `output`. Sends `input` N-1 times. With /*copy_own_chunk=*/false this rank's own
  /// piece of `output` holds anything afterwards, unless it is `input`.
  Work all_gather(at::Tensor output, at::Tensor input, Purpose purpose, bool copy_own_chunk = true);

  /// Piece p of rank r's `input` becomes piece r of rank p's `output`; both hold N equal pieces and
  /// may not overlap.
  Work all_to_all(at::Tensor output, at::Tensor input, Purpose purpose);

  /// One message to one other rank, and its counterpart. `tag` tells messages of one pair apart.
  Work send(at::Tensor tensor, int destination, Purpose purpose, int tag = 0);
  Work recv(at::Tensor tensor, int source, Purpose purpose, int tag = 0);

  /// Blocks until all ranks are here. Unlike the others it is complete when it returns.
  void barrier();

  /// Takes those steps of operations in flight that can be taken without waiting for a peer, so
  /// that a later wait() finds less to do. Needed only where nobody else takes them: ranks of one
  /// host copy from each other inside wait() and progress(); Gloo and NCCL have threads and
  /// streams.
  void progress();

  /// Blocks until all that was waited for is complete on the device too, or throws zero::Error as
  /// wait() does. On a GPU wait() only orders what comes after; before the host reads something,
  /// ask here, or it may block for ever on a rank that is gone. Elsewhere there is nothing to do.
  virtual void synchronize() {}

  /// Blocks until every rank has given its text; returns them in rank order. For start-up checks:
  /// slow, through the store. Throws zero::Error that names the ranks that did not come in time.
  virtual std::vector<std::string> exchange(const std::string& text) = 0;

  /// Blocks until all ranks have called it; throws zero::Error on every rank if they gave different
  /// texts, naming `what` and two ranks with their sides.
  void verify_same_on_all_ranks(const std::string& what, const std::string& text);

  /// A group of some of these ranks, in the order given (their ranks there are 0, 1, …). Called by
  /// exactly the ranks named, with the same list and the same `label` (unique per group).
  virtual std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                              const std::string& label) = 0;

  /// Bytes that one element of `dtype` takes on its way into a reduction of type `type`.
  std::int64_t reduced_element_size(at::ScalarType dtype, ReduceType type) const;

  /// Whether reductions for Purpose::kGradient look, while they add up, for results that are
  /// infinite or NaN (take_not_finite()). False where the backend adds up: whoever uses the results
  /// has to look for itself.
  virtual bool checks_gradients() const { return false; }

  /// By rank: whether it has contributed to a gradient that was not finite in the part that this
  /// rank added up. Of all reductions that were waited for since the last call. A sum that only
  /// overflowed counts as this rank's. Acts on this rank alone.
  std::vector<bool> take_not_finite();

  /// What this rank sent since it was connected.
  const Traffic& traffic() const { return traffic_; }

  /// Seconds this rank has spent inside wait() of any handle, in progress(), and starting
  /// operations: communication that was not hidden behind anything.
  double exposed_seconds() const { return exposed_seconds_; }

  /// Seconds in which at least one operation of this rank was in flight: started, and its wait()
  /// not yet over. Without what was exposed it is what could be hidden behind something else; how
  /// much moved in that time is for the transport to say.
  double in_flight_seconds() const;

  /// From now on adds what this rank does to `activities`, which must outlive it or the next call;
  /// null ends it. Operations that are in flight at that moment are added when they end.
  void record(std::vector<Activity>* activities) { activities_ = activities; }

  /// The training step, for error messages.
  void set_step(std::int64_t step) { step_ = step; }
  std::int64_t step() const { return step_; }

  /// Bytes that rank `rank` of `size` sends in an all-reduce of `elements` elements: its part of
  /// the reduce-scatter plus its part of the all-gather. Summed over ranks it is 2 (N-1) of the
  /// tensor.
  static std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t element_size, int rank,
                                       int size);

 protected:
  Communicator(int rank, int size, ReductionOrder order, bool check_collectives)
      : rank_(rank), size_(size), order_(order), check_collectives_(check_collectives) {}

  struct Call {
    Operation operation;
    Purpose purpose;
    std::int64_t sequence;
    std::int64_t bytes;            ///< of the tensor, for error messages
    std::string_view public_call;  ///< see CallScope
    bool copy_own_chunk = true;    ///< of an all-gather
  };

  virtual WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) = 0;
  virtual WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, ReduceOp op) = 0;
  virtual WorkPtr do_all_reduce(const Call&, at::Tensor tensor, ReduceOp op) = 0;
  virtual WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input,
                                    ReduceOp op) = 0;
  virtual WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) = 0;
  virtual WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) = 0;
  virtual WorkPtr do_send(const Call&, at::Tensor tensor, int destination, int tag) = 0;
  virtual WorkPtr do_recv(const Call&, at::Tensor tensor, int source, int tag) = 0;
  virtual void do_progress() {}

  /// Backends call this where they hand bytes over.
  void count(const Call& call, std::int64_t bytes) {
    traffic_.at(call.operation, call.purpose).bytes += bytes;
  }

  /// Called with a sum that is not finite, the contributions that it was made of, by rank, and
  /// whether the one that it has overwritten, if any, was finite.
  using Watch =
      std::function<void(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
                         bool overwritten_finite)>;
  /// What a backend that adds up itself calls; empty where nobody wants to know.
  Watch watch(const Call& call);

  friend class TimedWork;
  friend class CallScope;

  /// Where calls are noted from now on; all ranks of the group have one.
  void set_call_log(std::shared_ptr<CallLog> log) { call_log_ = std::move(log); }

 private:
  Call begin(Operation operation, Purpose purpose, const at::Tensor& tensor, int peer);
  Work finish(const Call& call, WorkPtr work, Activity::TimePoint started);
  static std::string title(const Call& call);
  void note_exposed(const char* what, const Call* call, Activity::TimePoint from);
  void note_complete(const Call& call, Activity::TimePoint started);
  void check_tensor(Operation operation, const at::Tensor& tensor) const;
  void check_rank(Operation operation, int peer) const;
  bool widens(at::ScalarType dtype, ReduceType type) const;
  at::Tensor widened(const at::Tensor& tensor, ReduceType type) const;
  void note_not_finite(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
                       bool overwritten_finite);

  int rank_;
  int size_;
  ReductionOrder order_;
  bool check_collectives_;
  std::shared_ptr<CallLog> call_log_;  // null: nobody else is there
  std::int64_t sequence_ = 0;
  std::int64_t step_ = -1;
  Traffic traffic_;
  double exposed_seconds_ = 0.0;
  double in_flight_seconds_ = 0.0;
  int in_flight_ = 0;  // operations
  Activity::TimePoint in_flight_since_;
  std::vector<Activity>* activities_ = nullptr;
  std::vector<bool> not_finite_;  // by rank; empty: none
};

/// While it lives, what `communicator` does belongs to the function `name` of a public interface
/// (a literal: "Engine::save"), unless it does to that of an outer scope already. Every collective
/// and exchange carries the name: where ranks are in different functions, waiting for each other,
/// each throws zero::Error that names both soon, and not when the time limit is over.
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

/// `mine` of every rank, one after the other in rank order; every rank gives as many. Called by all
/// ranks; blocks. Throws as Work::wait() does.
std::vector<double> all_gather_scalars(Communicator& communicator, std::vector<double> mine);

/// First element of piece `rank` when `elements` are cut into `size` pieces whose lengths differ by
/// at most one, longer ones first. piece_begin(n, N, N) is n.
std::int64_t piece_begin(std::int64_t elements, int rank, int size);

}  // namespace zero::dist
