#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <zero/memory/storage.hpp>
#include <zero/train/parameter_writes.hpp>

namespace zero::train {
namespace {

// The bits of all elements, as integers, added up: one pass, exact in any order.
std::uint64_t sum_of_bits(const at::Tensor& tensor) {
  at::Tensor values = memory::raw(tensor);
  if (values.is_complex()) values = at::view_as_real(values);
  const std::size_t size = values.element_size();
  const at::ScalarType word = size == 8   ? at::kLong
                              : size == 4 ? at::kInt
                              : size == 2 ? at::kShort
                                          : at::kChar;
  return static_cast<std::uint64_t>(values.view(word).sum().item<std::int64_t>());
}

}  // namespace

void ParameterWrites::add(const std::string& name, const at::Tensor& parameter) {
  std::uint64_t& digest = digests_[name];
  digest = digest * 31 + sum_of_bits(parameter);
}

void ParameterWrites::refuse(const std::string& name, const std::string& when) {
  if (!refused_.empty()) return;
  refused_ = fmt::format(
      "the program wrote into parameter '{}' {}: hold train::UnshardedParameters of its unit for "
      "the write, between steps and on all ranks",
      name, when);
}

void ParameterWrites::add(const ParameterWrites& others) {
  digests_.insert(others.digests_.begin(), others.digests_.end());
  if (refused_.empty()) refused_ = others.refused_;
}

std::string ParameterWrites::text() const {
  std::string all = refused_.empty() ? "" : refused_ + "\n";
  for (const auto& [name, digest] : digests_) {
    all += fmt::format("a write into parameter '{}' with digest {}\n", name, digest);
  }
  return all;
}

}  // namespace zero::train
