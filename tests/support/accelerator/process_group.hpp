#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include <zero/distributed/store/store.hpp>

/// A process group with the behaviour of NCCL's where there is no GPU.
namespace zero::testing {

/// From now on a stream of the CPU can wait for work that a thread of the host does: an event that
/// is recorded behind such work is complete when the work is, a stream that waits for the event
/// waits for the work, and the host finishes it before it runs an operation on that stream. Call it
/// before the first event of the CPU is made; calling it again does nothing.
void enable_host_tasks();

struct ProcessGroupOptions {
  /// A send of at most this many bytes completes without the receive. NCCL's limit depends on
  /// protocol and link: a program must work with 0.
  std::int64_t eager_bytes = 0;
  /// Runs on the internal stream before an operation of this rank; `number` counts the group's
  /// operations on this rank. It may wait (a late rank) or throw (a lost peer).
  std::function<void(c10d::OpType, std::uint64_t number)> before = {};
  /// Until an operation is complete the group keeps what it uses, because the host's allocator
  /// knows no streams: memory that is freed in the order of a stream would be another's before
  /// that. False shows what the caller keeps.
  bool keeps_buffers = true;
};

/// A group of all ranks for tensors of the emulated device, or of the CPU after
/// enable_host_tasks(). As ProcessGroupNCCL,
///
/// - it runs collectives on an internal stream, in the order of the calls, and the messages between
///   two ranks, both directions, on one of their own;
/// - the first collective connects all ranks, and the first message two of them: their hosts wait
///   for each other;
/// - an operation begins after earlier work of the current stream, and its Work::wait() blocks the
///   current stream and not the host;
/// - a send completes when the receive is there (see ProcessGroupOptions::eager_bytes);
/// - a Work keeps its outputs while it lives, and its inputs until its wait();
/// - after a lost peer or the time limit getError() says so, all operations end, their outputs are
///   0xFF bytes, and their Works and events look complete, without an exception.
///
/// Sums are added up in rank order. On the CPU all this takes place in time. On the emulated device
/// an operation runs before the call returns, as kernels do there, and a send does not wait for its
/// receive: what orders it is for the checker to say, which is told what it reads and writes on the
/// internal stream.
c10::intrusive_ptr<c10d::Backend> make_process_group(const dist::StorePtr& store, int rank,
                                                     int size, std::chrono::milliseconds timeout,
                                                     const ProcessGroupOptions& options = {});

}  // namespace zero::testing
