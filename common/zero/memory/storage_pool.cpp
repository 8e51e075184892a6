#include <iterator>
#include <utility>

#include <zero/memory/storage_pool.hpp>

namespace zero::memory {

void StoragePool::allocate(const at::Tensor& tensor, Category category) {
  if (has_storage(tensor)) return;
  const std::size_t bytes = tensor.nbytes();
  const auto kept = free_.find(bytes);
  if (kept == free_.end()) {
    make_room(bytes);
    const Charge charge(category);
    allocate_storage(tensor);
    return;
  }
  detail::set_bytes(tensor, std::move(kept->second));
  free_.erase(kept);
  recharge(tensor, category);
}

void StoragePool::release(const at::Tensor& tensor, const std::string& message) {
  if (!has_storage(tensor) || tensor.numel() == 0) return;
  const std::size_t bytes = tensor.storage().nbytes();
  at::DataPtr released = detail::take_bytes(tensor, message);
  if (keeps_) free_.emplace(bytes, std::move(released));
}

void StoragePool::make_room(std::size_t bytes) {
  std::size_t freed = 0;
  while (freed < bytes && !free_.empty()) {
    const auto largest = std::prev(free_.end());
    freed += largest->first;
    free_.erase(largest);
  }
}

std::size_t StoragePool::bytes() const {
  std::size_t sum = 0;
  for (const auto& block : free_) sum += block.first;
  return sum;
}

}  // namespace zero::memory
