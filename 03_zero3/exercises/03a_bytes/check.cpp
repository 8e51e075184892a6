// Releases a weight between forward and backward, and compares bytes, version and gradients.

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "03a.hpp"

namespace exercise_03a {

using zero::exercise::Mistake;

// Fills memory with NaN when it is handed out and when it is freed: no answer is right because of
// what happens to be there.
class Poisoning final : public c10::Allocator {
 public:
  explicit Poisoning(c10::Allocator* inner) : inner_(inner) {}

  at::DataPtr allocate(std::size_t bytes) override {
    auto block = std::make_unique<Block>(Block{inner_->allocate(bytes), bytes});
    block->poison();
    void* const data = block->data.get();
    return {data, block.release(), &Poisoning::release, at::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Block {
    at::DataPtr data;
    std::size_t bytes;
    void poison() {
      if (bytes > 0) std::memset(data.get(), 0xFF, bytes);  // each float is NaN
    }
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->poison();
  }
  c10::Allocator* inner_;
};

constexpr std::int64_t kRows = 60, kColumns = 40, kBytes = 4 * kRows * kColumns;

std::int64_t bytes_in_use() { return zero::memory::snapshot().total; }

void check_released(const at::Tensor& weight, const at::Tensor& saved, std::int64_t freed) {
  if (freed < kBytes) {
    const bool zeros = saved.storage().nbytes() > 0 && saved.count_nonzero().item<int>() == 0;
    throw Mistake(fmt::format(
        "release_bytes() frees {} of {} bytes: {}", freed, kBytes,
        zeros ? "zeros take as many bytes as other numbers"
              : "autograd has saved the tensor, so its storage object must give the bytes back"));
  }
  if (const std::size_t said = saved.storage().nbytes(); said != 0) {
    throw Mistake(
        fmt::format("after release_bytes() the storage still says {} bytes, and has none", said));
  }
  if (weight.sizes() != at::IntArrayRef({kRows, kColumns})) {
    throw Mistake("after release_bytes() the tensor has lost its shape");
  }
}

void check_restored(const at::Tensor& weight, const at::Tensor& saved, const at::Tensor& values,
                    std::int64_t versions) {
  if (!weight.is_alias_of(saved)) {
    throw Mistake(
        "after restore_bytes() the bytes are in another storage object: what autograd has saved "
        "keeps the one that was released");
  }
  if (weight.storage().nbytes() < kBytes || weight.storage().data() == nullptr) {
    throw Mistake(fmt::format("after restore_bytes() the storage has {} bytes and {} are needed",
                              weight.storage().nbytes(), kBytes));
  }
  if (weight.isnan().any().item<bool>()) {
    throw Mistake(
        "after restore_bytes() the weight holds what the allocator left there: bytes "
        "come back without values");
  }
  if (!weight.equal(values)) throw Mistake("restore_bytes() writes other values than it is given");
  if (versions != 0) {
    throw Mistake(
        fmt::format("the version counter has risen by {}: backward refuses a tensor that "
                    "was written since it was saved",
                    versions));
  }
}

// Gradients of the input and of the weight. `between` is called between forward and backward.
std::vector<at::Tensor> gradients(const at::Tensor& weight,
                                  const std::function<void(const at::Tensor& saved)>& between) {
  weight.mutable_grad().reset();
  at::manual_seed(1);
  const at::Tensor input = at::randn({8, kRows}).requires_grad_();
  at::Tensor loss = input.mm(weight).tanh().sum();
  between(weight.detach());
  loss.backward();
  return {input.grad(), weight.grad()};
}

void check(const Answer& answer) {
  static Poisoning poisoning(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&poisoning, /*priority=*/101);
  const at::Tensor weight = at::randn({kRows, kColumns}).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    const at::Tensor values = weight.detach().clone();
    const auto right = gradients(values.clone().requires_grad_(), [](const at::Tensor&) {});
    const auto got = gradients(weight, [&](const at::Tensor& saved) {
      const std::int64_t before = bytes_in_use();
      const std::int64_t version = weight._version();
      answer.release_bytes(weight);
      check_released(weight, saved, before - bytes_in_use());
      answer.restore_bytes(weight, values);
      check_restored(weight, saved, values, weight._version() - version);
      if (const std::int64_t more = bytes_in_use() - before; more != 0) {
        throw Mistake(fmt::format("{} bytes more than before are in use afterwards", more));
      }
    });
    if (!got[0].equal(right[0]) || !got[1].equal(right[1])) {
      throw Mistake("backward computes other gradients than with a weight that was never released");
    }
  }
}

}  // namespace exercise_03a
