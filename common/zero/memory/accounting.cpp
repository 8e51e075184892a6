#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstdlib>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <zero/memory/accounting.hpp>

namespace zero::memory {
namespace {

// Precedes every block. 64 bytes keep the block itself aligned as LibTorch expects.
struct alignas(64) Header {
  std::size_t bytes;
  Category category;
};
static_assert(sizeof(Header) == 64);

thread_local Category current_category = Category::kOther;

std::mutex mutex;
// Both guarded by the mutex.
Snapshot counts;
void (*change_observer)(const Snapshot&) = nullptr;

LargeBlocks* large_blocks = nullptr;

// Headers of blocks on another device, guarded by mutex. Never destroyed: that device's allocator
// may free its last blocks when the process ends.
std::unordered_map<const void*, Header>& device_headers() {
  static auto* const headers = new std::unordered_map<const void*, Header>;
  return *headers;
}

// Caller holds the mutex.
void changed(std::size_t category) {
  counts.peak[category] = std::max(counts.peak[category], counts.current[category]);
  counts.total_peak = std::max(counts.total_peak, counts.total);
  counts.states_peak = std::max(counts.states_peak, counts.model_states());
  if (change_observer != nullptr) change_observer(counts);
}

void add(Category category, std::int64_t bytes) {
  const std::lock_guard lock(mutex);
  const auto i = static_cast<std::size_t>(category);
  counts.current[i] += bytes;
  counts.total += bytes;
  if (bytes > 0) ++counts.allocations;
  changed(i);
}

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

// Smaller blocks are copied when they are sent, which takes less than a tenth of a millisecond.
constexpr std::size_t kLargeBlock = 1 << 20;

// Optimizer states are never sent.
void* take(std::size_t bytes) {
  void* block = nullptr;
  if (large_blocks != nullptr && large_blocks->is_mine() && bytes >= kLargeBlock &&
      current_category != Category::kOptimizer) {
    block = large_blocks->take(static_cast<std::int64_t>(bytes));
  }
  return block == nullptr ? c10::alloc_cpu(bytes) : block;
}

void free_block(void* data) {
  if (data == nullptr) return;
  const bool is_shared = large_blocks != nullptr && large_blocks->contains(data);
  if (is_shared && !large_blocks->is_mine()) return;  // a forked child cannot read the header
  Header* header = header_of(data);
  add(header->category, -static_cast<std::int64_t>(header->bytes));
  is_shared ? large_blocks->give_back(header) : c10::free_cpu(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::kCPU)};
    TORCH_CHECK(bytes <= std::numeric_limits<std::size_t>::max() - sizeof(Header), "allocation of ",
                bytes, " bytes is too large");
    auto* header = static_cast<Header*>(take(bytes + sizeof(Header)));
    header->bytes = bytes;
    header->category = current_category;
    add(header->category, static_cast<std::int64_t>(bytes));
    void* data = header + 1;
    // Context and data are the same pointer, as LibTorch requires with a raw_deleter.
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

Header* header_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  // Unchecked access: a tensor whose bytes were released has no block.
  const c10::DataPtr& block =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (block.get() == nullptr) return nullptr;
  if (block.get_deleter() == &free_block) return header_of(block.get());
  // The header does not move until the block is freed, and the tensor holds the block.
  const std::lock_guard lock(mutex);
  const auto found = device_headers().find(block.get());
  return found == device_headers().end() ? nullptr : &found->second;
}

}  // namespace

std::string_view name(Category category) {
  constexpr std::array<std::string_view, kCategories> kNames = {
      "parameters", "gradients", "optimizer", "communication", "activations", "other"};
  return kNames.at(static_cast<std::size_t>(category));
}

std::int64_t Snapshot::model_states() const {
  return (*this)[Category::kParameters] + (*this)[Category::kGradients] +
         (*this)[Category::kOptimizer];
}

void install() {
  // Large blocks use huge pages: a step frees and allocates gigabytes, and the system clears each
  // page in a fault of its own. LibTorch reads this before its first large block.
  ::setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

Snapshot snapshot() {
  const std::lock_guard lock(mutex);
  return counts;
}

void reset_peaks() {
  const std::lock_guard lock(mutex);
  counts.peak = counts.current;
  counts.total_peak = counts.total;
  counts.states_peak = counts.model_states();
}

void take_large_blocks_from(LargeBlocks* blocks) { large_blocks = blocks; }

void on_change(void (*observer)(const Snapshot&)) {
  const std::lock_guard lock(mutex);
  change_observer = observer;
}

void device_block_allocated(const void* address, std::size_t bytes) {
  const Header header{bytes, current_category};
  {
    const std::lock_guard lock(mutex);
    device_headers()[address] = header;
  }
  add(header.category, static_cast<std::int64_t>(bytes));
}

void device_block_freed(const void* address) {
  Header header{};
  {
    const std::lock_guard lock(mutex);
    const auto found = device_headers().find(address);
    if (found == device_headers().end()) return;
    header = found->second;
    device_headers().erase(found);
  }
  add(header.category, -static_cast<std::int64_t>(header.bytes));
}

Charge::Charge(Category category) : previous_(std::exchange(current_category, category)) {}
Charge::~Charge() { current_category = previous_; }

void recharge(const at::Tensor& tensor, Category category) {
  Header* header = header_of(tensor);
  if (header == nullptr || header->category == category) return;
  const std::lock_guard lock(mutex);
  const auto bytes = static_cast<std::int64_t>(header->bytes);
  const auto to = static_cast<std::size_t>(category);
  counts.current[static_cast<std::size_t>(header->category)] -= bytes;
  counts.current[to] += bytes;
  header->category = category;
  changed(to);
}

}  // namespace zero::memory
