#include <zero/memory/storage.hpp>
#include <zero/train/owners.hpp>

namespace zero::train {

Owners::Owners(const nn::ParameterList& list, const dist::Communicator& communicator,
               Ownership ownership)
    : rank_(communicator.rank()) {
  std::vector<std::int64_t> bytes;
  for (const nn::Parameter& p : list.parameters) bytes.push_back(p.bytes());
  owners_ = assign_owners(bytes, communicator.size(), ownership);
}

Placements Owners::placements(const nn::ParameterList& list, dist::Communicator& group) const {
  Placements all{.of = {}, .group = &group};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const at::Tensor& whole = list.parameters[i].tensor;
    const ParameterShard mine = this->mine(i) ? ParameterShard{whole} : ParameterShard{};
    all.of.push_back({.updated = mine, .kept = {whole}, .saved = mine});
  }
  return all;
}

void broadcast_from_owners(const nn::ParameterList& list, const std::vector<std::size_t>& indices,
                           const Owners& owners, dist::Communicator& communicator) {
  // One broadcast per parameter. All start before the first wait, so broadcasts of different owners
  // overlap.
  std::vector<dist::Work> pending;
  for (const std::size_t i : indices) {
    pending.push_back(communicator.broadcast(memory::raw(list.parameters[i].tensor), owners.of(i),
                                             dist::Purpose::kParameter));
  }
  for (dist::Work& work : pending) work.wait();
}

}  // namespace zero::train
