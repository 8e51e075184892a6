#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/tensor_placement.hpp>

/// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3): the ranks of a *tensor axis*
/// work on the same batch, and each has a part of every large matrix.
///
/// A layer has two halves, attention and the MLP. A half begins with matrices that are cut by their
/// outputs (column-parallel): each rank computes some of the features, for which it needs the whole
/// input. It ends with a matrix that is cut by its inputs (row-parallel): each rank multiplies its
/// features, and the results of all ranks are added up. Four functions lead into a half and out of
/// it; each has another of them as its backward:
///
///     function   forward            backward
///     copy       nothing            all-reduce
///     reduce     all-reduce         nothing
///     gather     all-gather         reduce-scatter
///     scatter    reduce-scatter     all-gather
///
/// All are called by all ranks of the axis in the same order, with the same shapes; they block, and
/// throw as dist::Work::wait() does. Their backward runs on the thread that autograd chooses, in
/// the order of the graph, which must be the same on all ranks. The traffic counts as
/// Purpose::kActivation, sums are in rank order, so all ranks get the same bits. New memory is
/// charged to the category of the current scope. They can be differentiated once.
namespace zero::nn {

/// What the ranks hold of a tensor that is not cut.
enum class Uncut : std::uint8_t {
  kSame,     ///< each rank holds the same values
  kPartial,  ///< a term of the sum: the values are those of all ranks added up
};

/// `x` (the same on all ranks) for work that differs between ranks. Returns the same values; the
/// gradient is the sum of the gradients of all ranks.
at::Tensor copy_to_axis(const at::Tensor& x, dist::Communicator& axis);

/// The sum of `x` over all ranks, on all of them; every rank's `x` gets the gradient of the sum.
at::Tensor reduce_over_axis(const at::Tensor& x, dist::Communicator& axis);

/// The `x` of all ranks one after the other along `dim`, n times as long on n ranks. Backward adds
/// up the ranks' gradients if `gradient` is kPartial (ranks do different work with the result), or
/// takes this rank's own (all do the same work). Each rank's `x` gets the gradient of its part.
at::Tensor gather_over_axis(const at::Tensor& x, std::int64_t dim, dist::Communicator& axis,
                            Uncut gradient = Uncut::kPartial);

/// This rank's part along `dim`: of the sum over ranks if `x_is` kPartial, or of `x` itself.
/// The gradients of all parts are that of `x`. Throws zero::Error if the parts would not be equal.
at::Tensor scatter_over_axis(const at::Tensor& x, std::int64_t dim, dist::Communicator& axis,
                             Uncut x_is = Uncut::kPartial);

/// How a model is split over a tensor axis. Without an axis, or over one of a single rank, it is
/// not split, and tensors pass unchanged.
///
/// Activations are [B, S, ...]. Inside a half of a layer a rank has its features of all positions.
/// Between halves (the residual stream) all ranks hold the same activations. With sequence
/// parallelism (Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
/// models") each holds those of S / n positions there instead; as many bytes are sent.
struct TensorParallel {
  TensorParallel() = default;
  /// `ranks` must outlive the model. `cut_sequence`: whether the residual stream is cut along the
  /// sequence.
  // NOLINTNEXTLINE(google-explicit-constructor): the axis is all that most models need.
  TensorParallel(dist::Communicator& ranks, bool cut_sequence = false)
      : axis(ranks.size() > 1 ? &ranks : nullptr), sequence(cut_sequence) {}

  dist::Communicator* axis = nullptr;  ///< null: the model is not split
  bool sequence = false;

  int ranks() const { return axis == nullptr ? 1 : axis->size(); }
  bool cuts_sequence() const { return axis != nullptr && sequence; }
  /// Of a parameter that is cut along `dim`.
  TensorPlacement cut(int dim) const {
    return axis == nullptr ? TensorPlacement() : TensorPlacement{axis, dim};
  }
  /// Of a parameter that every rank holds and uses on the residual stream, such as a norm's.
  TensorPlacement on_residual() const { return {axis, -1, cuts_sequence()}; }

  /// Of a sequence of `tokens`, how many positions of the residual stream this rank has. Throws
  /// zero::Error if the sequence cannot be cut evenly.
  std::int64_t positions(std::int64_t tokens) const;

  /// From the residual stream [B, S, ...] into a half of a layer: copy, or gather along the
  /// sequence.
  at::Tensor enter(const at::Tensor& x) const;
  /// Out of a half, whose results are to be added up, to the residual stream: reduce, or scatter
  /// along the sequence. Throws zero::Error if the sequence cannot be cut evenly.
  at::Tensor leave(const at::Tensor& x) const;
  /// The residual stream whole, for work that all ranks do alike.
  at::Tensor whole(const at::Tensor& x) const;
};

}  // namespace zero::nn
