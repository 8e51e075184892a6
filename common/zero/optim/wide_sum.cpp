#include <ATen/Dispatch.h>

#include <zero/optim/norm.hpp>
#include <zero/optim/wide_sum.hpp>

namespace zero::optim {
namespace {

WideSum wide_squared_norm(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  WideSum sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "wide_sum", [&] {
    const scalar_t* data = dense.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < dense.numel(); ++i) {
      const auto value = static_cast<double>(data[i]);
      sum.add(value * value);
    }
  });
  return sum;
}

}  // namespace

std::vector<WideSum> wide_squared_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<WideSum> all;
  if (!tensors.empty() && !tensors.front().is_cpu()) {
    for (const double square : squared_norms(tensors)) all.emplace_back(square, 0);
    return all;
  }
  for (const at::Tensor& tensor : tensors) all.push_back(wide_squared_norm(tensor));
  return all;
}

}  // namespace zero::optim
