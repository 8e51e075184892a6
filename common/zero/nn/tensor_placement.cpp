#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/tensor_placement.hpp>

namespace zero::nn {

std::vector<std::int64_t> TensorPlacement::whole_sizes(at::IntArrayRef part) const {
  std::vector<std::int64_t> sizes = part.vec();
  if (is_cut()) sizes.at(static_cast<std::size_t>(dim)) *= parts();
  return sizes;
}

std::vector<std::int64_t> TensorPlacement::part_sizes(at::IntArrayRef whole,
                                                      const std::string& what) const {
  std::vector<std::int64_t> sizes = whole.vec();
  if (!is_cut()) return sizes;
  std::int64_t& size = sizes.at(static_cast<std::size_t>(dim));
  if (size % parts() != 0) {
    throw Error(fmt::format(
        "dimension {} of '{}' has {} elements, which cannot be split evenly over {} ranks of the "
        "tensor axis",
        dim, what, size, parts()));
  }
  size /= parts();
  return sizes;
}

at::Tensor TensorPlacement::part_of(const at::Tensor& whole) const {
  if (!is_cut()) return whole;
  const std::int64_t size = whole.size(dim) / parts();
  return whole.narrow(dim, part() * size, size);
}

at::Tensor TensorPlacement::whole_of(const at::Tensor& part) const {
  const at::Tensor mine = memory::raw(part);
  if (!is_cut()) return mine;
  const memory::Charge charge(memory::Category::kCommunication);
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), parts());
  const at::Tensor all = at::empty(sizes, mine.options());
  axis->all_gather(all, mine.contiguous(), dist::Purpose::kParameter).wait();
  axis->synchronize();  // the host may be about to read
  return all.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

}  // namespace zero::nn
