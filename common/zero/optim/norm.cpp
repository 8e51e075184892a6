#include <ATen/Dispatch.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <zero/optim/norm.hpp>

namespace zero::optim {
namespace {

bool on_gpu(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && !tensors.front().is_cpu();
}

double largest_magnitude(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  const auto [least, most] = at::aminmax(tensor.flatten());  // both NaN if one element is
  return std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
}

// Calls add(index, element) for each element, in order.
template <typename Add>
void for_each_element(const at::Tensor& tensor, const Add& add) {
  const at::Tensor dense = tensor.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "norm", [&] {
    const scalar_t* data = dense.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < dense.numel(); ++i) add(i, static_cast<double>(data[i]));
  });
}

}  // namespace

std::vector<double> detail::norms_by_list(const std::vector<at::Tensor>& tensors, double order,
                                          const at::Tensor& more) {
  std::vector<double> all(tensors.size(), 0.0);
  std::vector<at::Tensor> with_elements, numbers;
  for (const at::Tensor& t : tensors) {
    if (t.numel() > 0) with_elements.push_back(t);
  }
  if (!with_elements.empty()) {
    numbers.push_back(at::stack(at::_foreach_norm(with_elements, order, at::kDouble)));
  }
  if (more.defined()) numbers.push_back(more.to(at::kDouble));
  if (numbers.empty()) return all;
  const at::Tensor read = at::cat(numbers).cpu();
  const double* next = read.const_data_ptr<double>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0) all[i] = *next++;
  }
  all.insert(all.end(), next, read.const_data_ptr<double>() + read.numel());
  return all;
}

// On the CPU, always in this order, so that every chapter at every world size gets the same bits:
// the clip coefficient multiplies every gradient. LibTorch's own norm adds in float, in an order
// that depends on the size of a tensor and on the processor.
double squared_norm(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return squared_norms({tensor}).front();
  // Eight independent sums; which element goes into which never changes.
  std::array<double, 8> sums{};
  for_each_element(tensor, [&sums](std::int64_t i, double value) {
    sums[static_cast<std::size_t>(i % 8)] += value * value;
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

std::vector<double> squared_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<double> all;
  if (on_gpu(tensors)) {
    all = detail::norms_by_list(tensors, 2);
    for (double& norm : all) norm *= norm;
  } else {
    for (const at::Tensor& tensor : tensors) all.push_back(squared_norm(tensor));
  }
  return all;
}

std::vector<WideSum> wide_squared_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<WideSum> all;
  if (!tensors.empty() && !tensors.front().is_cpu()) {
    for (const double square : squared_norms(tensors)) all.emplace_back(square, 0);
    return all;
  }
  for (const at::Tensor& tensor : tensors) {
    WideSum& sum = all.emplace_back();
    for_each_element(tensor, [&sum](std::int64_t, double value) { sum.add(value * value); });
  }
  return all;
}

std::vector<double> largest_magnitudes(const std::vector<at::Tensor>& tensors) {
  if (on_gpu(tensors)) {
    return detail::norms_by_list(tensors, std::numeric_limits<double>::infinity());
  }
  std::vector<double> all;
  for (const at::Tensor& tensor : tensors) all.push_back(largest_magnitude(tensor));
  return all;
}

double norm_from_squares(const std::vector<double>& squares) {
  WideSum sum;
  for (const double square : squares) sum.add(square);
  return std::sqrt(sum.rounded());
}

float clip_coefficient(float norm, double max_norm) {
  return std::min(1.0F, static_cast<float>(max_norm) / (norm + 1e-6F));
}

double clip_coefficient(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace zero::optim
