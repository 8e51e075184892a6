#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <zero/memory/storage.hpp>
#include <zero/train/parameter_writes.hpp>

namespace zero::train {

std::uint64_t digest_of_bits(const at::Tensor& tensor) {
  const at::Tensor values = memory::raw(tensor).contiguous().cpu();
  const auto* const bytes = static_cast<const char*>(values.const_data_ptr());
  const std::size_t size = values.nbytes();
  std::uint64_t digest = size;
  for (std::size_t i = 0; i < size; i += sizeof digest) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(size - i, sizeof word));
    // One word after another, so that their order counts; the rotation carries high bits down.
    digest = (std::rotl(digest, 27) ^ word) * 0x9e3779b97f4a7c15ULL;
  }
  return digest;
}

void ParameterWrites::add(const std::string& name, const at::Tensor& parameter) {
  std::uint64_t& digest = digests_[name];
  digest = digest * 31 + digest_of_bits(parameter);
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

dist::Statement::Topic ParameterWrites::topic() const {
  std::string all = refused_.empty() ? "" : refused_ + "\n";
  for (const auto& [name, digest] : digests_) {
    all += fmt::format("a write into parameter '{}' with digest {}\n", name, digest);
  }
  return {"what the program has written into parameters since the last step",
          std::move(all),
          {"pipeline", "tensor"}};
}

std::vector<std::uint64_t> ShownValues::digests(std::size_t unit) const {
  std::vector<std::uint64_t> all;
  for (const std::size_t i : list_.units[unit].parameters) {
    const at::Tensor& parameter = list_.parameters[i].tensor;
    all.push_back(parameter.is_cpu() ? digest_of_bits(parameter) : 0);
  }
  return all;
}

void ShownValues::note_writes(std::size_t unit) {
  const auto shown = shown_.extract(unit);
  if (shown.empty()) return;  // nobody held it, as when a checkpoint is loaded
  const std::vector<std::uint64_t> now = digests(unit), &before = shown.mapped();
  for (std::size_t k = 0; k < now.size(); ++k) {
    if (now[k] == before[k]) continue;
    torch::autograd::impl::bump_version(list_.parameters[list_.units[unit].parameters[k]].tensor);
  }
}

}  // namespace zero::train
