#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace zero::train {

/// Remembers, for every forward pass whose graph still exists, which weights it ran with and how
/// many loss terms it had. Loops may run forward long before backward, or backwards in another
/// order, so the order of calls does not tell.
class ForwardRecords {
 public:
  struct Record {
    const void* node = nullptr;  // the last operation of the loss; valid as long as the record is
    std::int64_t version = 0;    // of the weights
    std::optional<std::int64_t> loss_terms = {};  // none: not said
  };

  /// `loss` is what a forward returned. Does nothing if it has no graph.
  void add(const at::Tensor& loss, std::optional<std::int64_t> loss_terms);

  /// The weights differ from now on from those of all forwards so far.
  void weights_changed() { ++version_; }
  /// A number that is another one after each change; the same on all ranks.
  std::int64_t version() const { return version_; }

  /// Number of loss terms of the forward that `loss` was computed from; the mean if there were
  /// several, nothing if there was none or one of them did not say it.
  std::optional<double> loss_terms(const at::Tensor& loss) const;

  /// Whether the weights have not changed since any of those forwards.
  bool is_fresh(const at::Tensor& loss) const;

 private:
  std::vector<Record> of(const at::Tensor& loss) const;

  std::vector<std::weak_ptr<const Record>> records_;
  std::int64_t version_ = 0;
};

}  // namespace zero::train
