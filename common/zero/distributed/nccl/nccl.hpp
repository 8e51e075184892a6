#pragma once

#include <optional>

#include <zero/distributed/communicator.hpp>

/// Ranks on GPUs. This header and <zero/memory/cuda_memory.hpp> belong to a separate library,
/// zero::cuda, which exists if LibTorch was built with CUDA. A program that does not link it loads
/// no CUDA library.
namespace zero::dist {

struct NcclOptions {
  /// The GPU of this rank, as CUDA numbers those that it sees. Default: its number among the ranks
  /// of its machine (RankEnvironment::local_rank), modulo the number of GPUs that it sees, because
  /// a launcher may show each rank its own alone; for a single rank the thread's current GPU.
  std::optional<int> device;
  /// Used instead of ConnectOptions::order. NCCL's own reductions are the fast ones. kRankOrdered
  /// is for comparing bits in tests: it takes 2 (N-1) messages and as much scratch as the tensor,
  /// and is complete when the call returns.
  ReductionOrder order = ReductionOrder::kNative;
  /// A single rank calls NCCL too, for tests: streams and events are then those of several ranks.
  bool works_alone = false;
};

/// Makes the backend "nccl" available to connect(), connect_in_folder(), connect_alone() and
/// launch_ranks(). Call it once, before them; it touches no GPU yet. Their communicator
///
/// - takes CUDA tensors of this rank's GPU, which becomes the calling thread's current GPU, over
///   NCCL, and CPU tensors (flags, norms, barriers) over TCP like the backend "gloo";
/// - orders later work of the calling thread's stream behind the result in Work::wait(), without
///   blocking the thread. Communicator::synchronize() blocks until the result is complete, so that
///   a lost peer becomes a zero::Error and not a message of a background thread;
/// - counts bytes by the formulas of Communicator: NCCL sends the same total, but a broadcast goes
///   from rank to rank instead of N-1 times from the root;
/// - matches the messages between two ranks in the order of sending, apart for each direction. The
///   first one in a direction connects the ranks: both block until the other calls its part. Later
///   they may send to each other before they receive.
///
/// Throws zero::Error if the program was compiled with the header of another NCCL than LibTorch.
/// Connecting throws zero::Error on every rank, naming rank and cause, if a rank has no GPU or two
/// ranks share one, unless ranks_may_share_a_gpu().
void enable_nccl(const NcclOptions& options = {});

/// Whether several ranks may use one GPU: NCCL 2.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1.
/// What counts is the NCCL that is loaded, not the one that LibTorch was built with.
bool ranks_may_share_a_gpu();

}  // namespace zero::dist
