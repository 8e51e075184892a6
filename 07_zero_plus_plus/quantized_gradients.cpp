#include "quantized_gradients.hpp"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <cmath>
#include <utility>
#include <vector>

#include <zero/memory/accounting.hpp>

#include "finish_work.hpp"

namespace zero {

namespace {

using Pieces = std::vector<std::vector<GradientHop::Piece>>;

// To place t of this rank's group: the shards of place t of every group.
Pieces inside_pieces(int groups, int places) {
  Pieces pieces(static_cast<std::size_t>(places));
  for (int t = 0; t < places; ++t) {
    for (int g = 0; g < groups; ++g) {
      const int owner = g * places + t;
      pieces[static_cast<std::size_t>(t)].push_back({owner, owner});
    }
  }
  return pieces;
}

// To group g: of the sums of this rank's place, the shard that its rank owns.
Pieces between_pieces(int groups, int places, int place) {
  Pieces pieces;
  for (int g = 0; g < groups; ++g) pieces.push_back({{g * places + place, g}});
  return pieces;
}

at::Tensor float_scratch(std::int64_t elements, const at::Tensor& like) {
  const memory::Charge charge(memory::Category::kCommunication);
  return at::empty({elements}, like.options().dtype(at::kFloat));
}

}  // namespace

QuantizedGradients::QuantizedGradients(const dist::Mesh& mesh, ShardBlocks blocks,
                                       const train::FlatBuffer& buffer)
    : all_(mesh.data()),
      has_groups_(mesh.along("replica").size() > 1),
      pool_(buffer.pool),
      blocks_(std::move(blocks)),
      inside_(mesh.along("shard"),
              inside_pieces(mesh.along("replica").size(), mesh.along("shard").size()), blocks_,
              pool_),
      between_(mesh.along("replica"),
               between_pieces(mesh.along("replica").size(), mesh.along("shard").size(),
                              mesh.along("shard").rank()),
               blocks_, pool_) {}

dist::Work QuantizedGradients::reduce(const at::Tensor& full, const at::Tensor& /*shard*/) {
  GradientHop::Exchange hop = inside_.start(full);
  if (!hop.is_finite) all_.not_finite().note(all_.rank());
  return finish_with(std::move(hop.work), [this, sent = hop.sent, arrived = hop.arrived] {
    pool_.release(sent);
    sums_ = float_scratch(inside_.elements(), arrived);
    inside_.add_up(arrived, sums_);
    pool_.release(arrived);
  });
}

dist::Work QuantizedGradients::reduce_rest(const at::Tensor& shard) {
  RECORD_USER_SCOPE("qgz_between_groups");
  const at::Tensor sums = std::exchange(sums_, at::Tensor());
  if (!has_groups_) {
    average(sums, shard);
    return {};
  }
  GradientHop::Exchange hop = between_.start(sums);
  if (!hop.is_finite) note_overflow(sums);
  return finish_with(std::move(hop.work), [this, shard, sent = hop.sent, arrived = hop.arrived] {
    pool_.release(sent);
    const at::Tensor sum =
        shard.scalar_type() == at::kFloat ? shard : float_scratch(shard.numel(), shard);
    between_.add_up(arrived, sum);
    pool_.release(arrived);
    average(sum, shard);
  });
}

// Divides by the number of all ranks.
void QuantizedGradients::average(const at::Tensor& sum, const at::Tensor& shard) const {
  at::Tensor(sum).div_(all_.size());
  if (!sum.is_alias_of(shard)) at::Tensor(shard).copy_(sum);
  note_overflow(shard);
}

// Ranks send an infinity as NaN, so an infinity in `sum` comes from adding up. NaN has been noted
// by the rank that sent it. On a device the host would wait here: there the averages are checked,
// once a step.
void QuantizedGradients::note_overflow(const at::Tensor& sum) const {
  if (sum.numel() == 0 || !sum.is_cpu()) return;
  const auto [least, most] = at::aminmax(sum);
  if (std::isinf(least.item<float>()) || std::isinf(most.item<float>())) {
    all_.not_finite().note(all_.rank());
  }
}

}  // namespace zero
