#include <ATen/ops/empty.h>

#include <zero/distributed/agreement.hpp>
#include <zero/io/whole_parameters.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>

namespace zero::io {

using dist::Purpose;

WholeParameters::WholeParameters(train::Strategy& strategy, WholeOn ranks)
    : strategy_(strategy),
      ranks_(ranks),
      stage_(strategy.stage_of_model()),
      pipeline_(strategy.mesh().pipeline()),
      index_(stage_.whole().size(), kNone),
      owner_(stage_.whole().size(), 0) {
  std::vector<double> has(index_.size(), 0);
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (stage_.is_copy(i)) continue;
    index_[stage_.place(i)] = i;
    has[stage_.place(i)] = 1;
  }
  const std::vector<double> all = dist::all_gather_scalars(pipeline_, has);
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k] != 0) owner_[k % has.size()] = static_cast<int>(k / has.size());
  }
}

at::Tensor WholeParameters::collect(std::size_t g) {
  const bool has = index_[g] != kNone;
  if (has) unshard(strategy_.list().parameters[index_[g]].unit);
  const bool everywhere = ranks_ == WholeOn::kAllRanks;
  if (!everywhere && strategy_.communicator().rank() != 0) return {};
  at::Tensor whole;
  if (has) {
    // The tensor axis of rank 0 has the same as the others.
    const nn::Parameter& p = strategy_.list().parameters[index_[g]];
    whole = p.placement.whole_of(memory::raw(p.tensor));
  }
  if (pipeline_.size() == 1) return whole;
  if (everywhere) {
    if (!has) whole = room_for(g);
    pipeline_.broadcast(whole, owner_[g], Purpose::kParameter).wait();
  } else {
    if (owner_[g] == 0) return whole;
    if (strategy_.mesh().tensor().rank() != 0) return {};
    if (has) pipeline_.send(whole, 0, Purpose::kParameter).wait();
    if (pipeline_.rank() != 0) return {};
    whole = room_for(g);
    pipeline_.recv(whole, owner_[g], Purpose::kParameter).wait();
  }
  pipeline_.synchronize();  // the host is about to read
  return whole;
}

void WholeParameters::unshard(std::size_t unit) {
  if (unit == unit_) return;
  unsharded_.reset();
  unsharded_ = std::make_unique<train::UnshardedParameters>(strategy_, unit);
  unit_ = unit;
}

at::Tensor WholeParameters::room_for(std::size_t g) const {
  const memory::Charge charge(memory::Category::kCommunication);
  const nn::Parameter& p = stage_.whole().parameters[g];
  const at::Device device = strategy_.list().parameters.front().tensor.device();
  return at::empty(p.whole_sizes(), p.tensor.options().device(device));
}

}  // namespace zero::io
