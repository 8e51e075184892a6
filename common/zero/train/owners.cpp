#include <algorithm>
#include <numeric>

#include <zero/memory/storage.hpp>
#include <zero/train/owners.hpp>

namespace zero::train {

std::vector<int> assign_owners(const std::vector<std::int64_t>& bytes, int world_size) {
  std::vector<std::size_t> largest_first(bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(world_size), 0);
  std::vector<int> owners(bytes.size());
  for (const std::size_t i : largest_first) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += bytes[i];
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

Owners::Owners(const nn::ParameterList& list, const dist::Communicator& communicator)
    : rank_(communicator.rank()) {
  std::vector<std::int64_t> bytes;
  for (const nn::Parameter& p : list.parameters) bytes.push_back(p.bytes());
  owners_ = assign_owners(bytes, communicator.size());
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
