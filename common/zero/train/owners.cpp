#include <utility>

#include <zero/memory/storage.hpp>
#include <zero/train/owners.hpp>

namespace zero::train {

Owners::Owners(const nn::ParameterList& list, const dist::Communicator& communicator,
               Ownership ownership)
    : rank_(communicator.rank()) {
  std::vector<std::int64_t> bytes;
  for (const nn::Parameter& p : list.parameters) bytes.push_back(p.bytes());
  owners_ = assign_owners(bytes, communicator.size(), ownership);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!mine(i)) continue;
    bytes_ += bytes[i];
    if (list.parameters[i].tensor.requires_grad()) trainable_bytes_ += bytes[i];
  }
}

void broadcast_from_owners(const nn::ParameterList& list, const std::vector<std::size_t>& indices,
                           const Owners& owners, dist::Communicator& communicator,
                           dist::Purpose purpose) {
  // All in flight at once: while one owner sends, another's parameters travel the other way.
  std::vector<dist::Work> pending;
  for (const std::size_t i : indices) {
    pending.push_back(
        communicator.broadcast(memory::raw(list.parameters[i].tensor), owners.of(i), purpose));
  }
  for (dist::Work& p : pending) p.wait();
}

std::vector<std::size_t> backward_order(const nn::ParameterList& list) {
  std::vector<std::size_t> order;
  for (std::size_t i = list.size(); i-- > 0;) {
    if (list.parameters[i].tensor.requires_grad()) order.push_back(i);
  }
  return order;
}

}  // namespace zero::train
