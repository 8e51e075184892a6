#pragma once

#include <filesystem>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::plots {

/// Records what this process runs between construction and finish(), by LibTorch's profiler, as a
/// Chrome trace: every operation, the collectives, and the named ranges of trainer and strategies
/// (forward, backward, optimizer, zero1_param_broadcast, zero2_grad_reduce, zero3_param_gather, …).
/// With a communicator, also records when collectives were in flight: a pair of asynchronous events
/// of category "collective" for each, from its start to the return of its wait(), with the bytes of
/// its tensor, and an event of category "exposed" for each stretch in which this thread did nothing
/// but communicate. Communication outside of those stretches is hidden behind other work.
/// Of a GPU, also records kernels, copies and the calls that started them.
/// Open the file in Perfetto (https://ui.perfetto.dev) or chrome://tracing. One at a time in a
/// process, used on one thread, the one that trains. Recording slows small operations down.
class Trace {
 public:
  /// Starts recording. The first one in a process takes a moment.
  explicit Trace(dist::Communicator* communicator = nullptr, at::Device device = at::kCPU);
  /// Stops; the recording is lost unless finish() was called.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Waits for the device, stops recording and writes `file`, whole or not at all; makes its folder
  /// if there is none.
  /// @throws zero::Error where the file cannot be written.
  void finish(const std::filesystem::path& file);

 private:
  void stop_activities();

  bool recording_ = true;
  dist::Communicator* communicator_;
  at::Device device_;
  std::vector<dist::Activity> activities_;
};

}  // namespace zero::plots
