#include "secondary_shard.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include <zero/memory/accounting.hpp>

#include "finish_work.hpp"

namespace zero {

SecondaryShard::SecondaryShard(std::unique_ptr<train::ParameterTransfer> from_all,
                               dist::Communicator& group, std::int64_t elements,
                               const at::TensorOptions& options, WeightsVersion version)
    : from_all_(std::move(from_all)), group_(group), version_(std::move(version)) {
  const memory::Charge charge(memory::Category::kParameters);
  secondary_ = at::empty({elements / group.size()}, options);
}

dist::Work SecondaryShard::gather(const at::Tensor& full, const at::Tensor& shard) {
  if (!reads_shard()) return group_.all_gather(full, secondary_, dist::Purpose::kParameter);
  made_from_ = version_();
  return finish_with(from_all_->gather(full, shard), [this, full] { keep_part_of(full); });
}

void SecondaryShard::keep_part_of(const at::Tensor& full) {
  const std::int64_t part = secondary_.numel();
  secondary_.copy_(full.narrow(0, group_.rank() * part, part));
}

std::int64_t SecondaryShard::held_bytes() const {
  return from_all_->held_bytes() + static_cast<std::int64_t>(secondary_.nbytes());
}

train::SentBytes SecondaryShard::sent(std::int64_t gathers) const {
  const std::int64_t from_all = reads_shard() ? std::min<std::int64_t>(gathers, 1) : 0;
  train::SentBytes sum = from_all_->sent(from_all);
  sum.all +=
      (gathers - from_all) * (group_.size() - 1) * static_cast<std::int64_t>(secondary_.nbytes());
  return sum;
}

}  // namespace zero
