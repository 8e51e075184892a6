#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/traffic.hpp>

namespace zero::dist {

class NotFinite;

/// What a rank is in (CallScope): the public function, such as "Engine::save", and the unit of a
/// model whose parameters are sent. Empty: not known. The texts live as long as they are set.
struct Running {
  std::string_view public_call = {};
  std::string_view unit = {};
};

/// What must hold where units are gathered one by one, for messages.
inline constexpr const char* kRuleOfUnits =
    "at stage 3 all ranks run the same units in the same order; modules among which a rank chooses "
    "belong in one unit: units_named()";

/// A collective or message of a communicator: what a backend is told besides the tensors.
struct Call {
  Operation operation;
  Purpose purpose;
  std::int64_t sequence;            ///< among the collectives of the communicator
  std::int64_t bytes;               ///< of the tensor
  std::int64_t step;                ///< see Communicator::set_step()
  std::string_view public_call;     ///< see CallScope
  std::uint64_t fingerprint = 0;    ///< of a collective: see CallLog and Backend
  int root = -1;                    ///< of a broadcast or reduce; the other rank of a message
  int divisor = 1;                  ///< of the sum
  bool adds_sums = false;           ///< see Reduction::average_of_sums()
  bool copy_own_chunk = true;       ///< of an all-gather
  NotFinite* not_finite = nullptr;  ///< where to say that a sum is not finite; null: nobody asks

  /// For traces: "all_gather parameter".
  std::string title() const;
  /// For error messages: "all_reduce #7 (gradient, 40 bytes) in Engine::save in step 2".
  std::string text() const;
};

/// A period in which a communicator was at work on this rank, for traces.
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
/// and parts of the work (the sums) are done inside it. Move-only. Destroying a handle that was
/// never waited on ends the process, unless an exception is being thrown.
class Work {
 public:
  /// The backend's part of finishing the operation.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
    /// See Work::wait_output(). Returns whether wait() is still needed.
    virtual bool wait_output() {
      wait();
      return false;
    }
  };

  Work() = default;  ///< nothing to wait for
  explicit Work(std::unique_ptr<Pending> work) : work_(std::move(work)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept;
  ~Work();

  /// Blocks until the operation is complete on this rank. Throws zero::Error when a peer is lost,
  /// when the time limit passes, or when ranks disagree; the group is unusable afterwards. Waiting
  /// again does nothing.
  void wait();

  /// Blocks until this rank can read its results. Peers may still read the tensors that this rank
  /// passed in: do not write or free them before wait() has returned as well. Throws as wait()
  /// does. Over some transports it is the same as wait().
  void wait_output();

  /// False once waited on.
  bool active() const { return work_ != nullptr; }

 private:
  std::unique_ptr<Pending> work_;
};

/// How long the operations of a communicator and of groups split from it are in flight, and how
/// long their thread spends on them: Communicator::times().
class WorkTimes {
 public:
  /// Seconds that this rank has spent inside wait() of any handle, in progress(), and starting
  /// operations: communication that nothing hid.
  double exposed_seconds() const { return exposed_seconds_; }
  /// Seconds in which at least one operation of this rank was in flight: started, and its wait()
  /// not yet over. Minus the exposed seconds, this is the time that other work could hide; how much
  /// data moved in it depends on the transport.
  double in_flight_seconds() const;
  /// From now on adds the activities of this rank to `activities`, which must outlive it or the
  /// next call; null ends recording. Operations in flight are added when they end.
  void record(std::vector<Activity>* activities) { activities_ = activities; }

  /// Returns the handle of `work`, which the thread began to start at `started`. No work: there is
  /// nothing to wait for. The handle uses this object.
  Work track(const Call& call, std::unique_ptr<Work::Pending> work, Activity::TimePoint started);
  /// Since `from` the thread has been in the "start" or "wait" of `call`, or in "progress" of all
  /// operations (null).
  void note_exposed(const char* what, const Call* call, Activity::TimePoint from);

 private:
  class TimedWork;
  void note_complete(const Call& call, Activity::TimePoint started);

  double exposed_seconds_ = 0.0;
  double in_flight_seconds_ = 0.0;
  int in_flight_ = 0;  // operations
  Activity::TimePoint in_flight_since_;
  std::vector<Activity>* activities_ = nullptr;
};

}  // namespace zero::dist
