#include <zero/data/batch.hpp>

namespace zero::data {

std::uint64_t digest(const Batch& batch, std::uint64_t before) {
  constexpr std::uint64_t kPrime = 1099511628211ULL;
  std::uint64_t h = before;
  for (const at::Tensor& t : {batch.inputs, batch.targets, batch.lengths}) {
    h = (h ^ (t.defined() ? static_cast<std::uint64_t>(t.numel()) + 1 : 0)) * kPrime;
    if (!t.defined() || !t.is_cpu()) continue;
    const at::Tensor dense = t.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) h = (h ^ bytes[i]) * kPrime;
  }
  return (h ^ static_cast<std::uint64_t>(batch.loss_terms)) * kPrime;
}

}  // namespace zero::data
