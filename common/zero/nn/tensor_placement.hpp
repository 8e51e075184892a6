#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::nn {

/// What a rank of a tensor axis holds of a parameter (see tensor_parallel.hpp). A parameter is cut
/// along one dimension into equal parts, of which tensor rank r holds part r, or every rank holds
/// all of it. The default is a parameter of a model that is not split.
struct TensorPlacement {
  dist::Communicator* axis = nullptr;  ///< not owned
  int dim = -1;                        ///< it is cut along; -1: not cut
  /// Not cut, and each rank's backward sees a part of the tokens: the gradients of the ranks are to
  /// be added up. Otherwise each rank has the whole gradient of what it holds.
  bool sums_gradient = false;

  bool is_cut() const { return dim >= 0; }
  int parts() const { return is_cut() ? axis->size() : 1; }
  /// The part that this rank holds.
  int part() const { return is_cut() ? axis->rank() : 0; }

  /// The sizes of the whole parameter, from those of a part.
  std::vector<std::int64_t> whole_sizes(at::IntArrayRef part) const;
  /// The inverse. Throws zero::Error that names `what` and both numbers if the parts would not be
  /// equal.
  std::vector<std::int64_t> part_sizes(at::IntArrayRef whole, const std::string& what) const;
  /// This rank's part, as a view of `whole`.
  at::Tensor part_of(const at::Tensor& whole) const;
  /// The whole parameter on every rank of the axis, from this rank's `part`: new memory, charged to
  /// memory::Category::kCommunication, or `part` itself if it is not cut. Called by all ranks of
  /// the axis; blocks. It works below autograd. The traffic counts as Purpose::kParameter.
  at::Tensor whole_of(const at::Tensor& part) const;
};

}  // namespace zero::nn
