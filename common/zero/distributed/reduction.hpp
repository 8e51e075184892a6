#pragma once

#include <cstdint>
#include <string_view>

namespace zero::dist {

/// How contributions are combined. The average is the sum, divided once by the world size.
enum class ReduceOp : std::uint8_t { kSum, kAverage };

/// In which order contributions are added.
enum class ReductionOrder : std::uint8_t {
  /// Every element is ((r0 + r1) + r2) + …, whatever buffer it travels in. Floating-point addition
  /// is not associative; the fixed order gives every sharding the same bits at any world size.
  /// bfloat16 and float16 are added in float32, divided, and rounded once.
  kRankOrdered,
  /// The backend's own order, if it adds by itself, as NCCL does. Between CPU tensors it is rank
  /// order.
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
  /// The last of several reductions, each inside other groups of the same ranks. It adds up sums of
  /// `ranks` ranks in all, and divides the result by that number once.
  static Reduction average_of_sums(int ranks, ReduceType type) {
    Reduction last(ReduceOp::kAverage, type);
    last.ranks = ranks;
    return last;
  }
  /// The number by which the sum is divided in a group of `size` ranks.
  int divisor(int size) const { return op == ReduceOp::kSum ? 1 : ranks > 0 ? ranks : size; }

  ReduceOp op;
  ReduceType type;
  int ranks = 0;  ///< 0: those of the group
};

/// First element of piece `rank` when `elements` are cut into `size` pieces whose lengths differ by
/// at most one, longer ones first. piece_begin(n, N, N) is n.
std::int64_t piece_begin(std::int64_t elements, int rank, int size);

/// Bytes that rank `rank` of `size` sends in an all-reduce of `elements` elements: its part of the
/// reduce-scatter plus its part of the all-gather. Over all ranks the sum is 2 (N-1) times the
/// tensor.
std::int64_t all_reduce_bytes(std::int64_t elements, std::int64_t element_size, int rank, int size);

}  // namespace zero::dist
