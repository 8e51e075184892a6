#pragma once

// Private to collectives_bench.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include <zero/distributed/gloo/gloo_communicator.hpp>

namespace zero::dist {

/// What one collective works on, float32 on the CPU.
struct Data {
  Communicator& ranks;
  GroupPtr gloo;     ///< c10d's own group of the same ranks
  at::Tensor whole;  ///< [n], n a multiple of the number of ranks
  at::Tensor piece;  ///< [n / ranks]
  at::Tensor other;  ///< [n]

  /// Tensors of zeros; `whole` of at most `bytes`.
  Data(Communicator& communicator, std::int64_t bytes);
  /// The place of `rank` in a tensor like `whole`.
  at::Tensor part(const at::Tensor& tensor, int rank) const;
};

/// One way to do one collective.
struct Implementation {
  std::string operation;  ///< "all_reduce", …
  std::string name;       ///< "host", "tcp" (ours), "gloo" (c10d's own), "other" (an alternative)
  /// Called by all ranks; blocks. all_reduce, reduce to rank 0, broadcast from rank 0: `whole` in
  /// place; reduce_scatter: `whole` to `piece`; all_gather: `piece` to `whole`; all_to_all: `whole`
  /// to `other`. Sums, no averages.
  std::function<void(Data&)> run;
};

std::vector<Implementation> implementations();

/// Fills the input with whole numbers that differ by rank and place and whose sums are exact.
void prepare(const Data& data);
/// Whether that has become what `operation` makes of it, to the last bit.
bool right(const Data& data, const std::string& operation);

}  // namespace zero::dist
