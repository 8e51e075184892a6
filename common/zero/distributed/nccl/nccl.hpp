#pragma once

#include <optional>
#include <string>

#include <zero/distributed/communicator.hpp>

/// Ranks on GPUs. This header and <zero/memory/cuda_memory.hpp> belong to a library of their own,
/// zero::cuda, which exists where LibTorch was built with CUDA: a program that does not link it
/// loads no CUDA library.
namespace zero::dist {

struct NcclOptions {
  /// The GPU of this rank, as CUDA counts them; by default its number among the ranks of its
  /// machine (RankEnvironment::local_rank), and for a rank alone the current one of the thread.
  std::optional<int> device;
  /// Goes before ConnectOptions::order. NCCL's own reductions are what GPUs are fast at;
  /// kRankOrdered is there to compare bits in tests, takes 2 (N-1) messages for each window of a
  /// tensor and is complete when the call returns.
  ReductionOrder order = ReductionOrder::kNative;
};

/// Lets connect(), connect_in_folder(), connect_alone() and launch_ranks() take the backend
/// "nccl". Call it once, before them; it touches no GPU yet. The communicator that they make then
///
/// - takes CUDA tensors of this rank's GPU, which becomes the current one of the calling thread,
///   over NCCL, and CPU tensors (flags, norms, barriers) over TCP like the backend "gloo";
/// - orders what the calling thread's stream does after Work::wait() behind the result, without
///   blocking the thread; Communicator::synchronize() blocks until the result is there, so that a
///   lost peer is a zero::Error and not a message of a background thread;
/// - counts bytes by the formulas of Communicator: NCCL sends as many in all, but a broadcast goes
///   from rank to rank instead of N-1 times from the root;
/// - matches the messages of a pair of ranks in the order in which they were sent, whatever their
///   tags. Two ranks that send to each other use all_to_all(): two sends that wait for each other's
///   receive would hang until the time limit.
///
/// Connecting throws zero::Error on every rank, naming rank and cause, where a rank has no GPU or
/// two ranks would share one (but see ranks_may_share_a_gpu(): then ranks are dealt out over the
/// GPUs that there are).
void enable_nccl(const NcclOptions& options = {});

/// Whether several ranks may use one GPU: NCCL 2.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1.
bool ranks_may_share_a_gpu();

}  // namespace zero::dist
