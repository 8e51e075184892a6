#include <ATen/Dispatch.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <zero/optim/norm.hpp>

namespace zero::optim {

const char* name(Norm norm) {
  return std::array{"L1", "L2", "infinity"}.at(static_cast<std::size_t>(norm));
}

namespace {

// On the CPU, always in this order, so that every chapter at every world size gets the same bits:
// the clip coefficient multiplies every gradient. LibTorch's own norm adds in float, in an order
// that depends on the size of a tensor and on the processor.
template <typename OfElement>
double sum_over(const at::Tensor& tensor, const OfElement& of_element) {
  const at::Tensor dense = tensor.contiguous();
  // Eight independent sums; which element goes into which never changes.
  std::array<double, 8> sums{};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "sum_over", [&] {
    const scalar_t* data = dense.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < dense.numel(); ++i) {
      sums[static_cast<std::size_t>(i % 8)] += of_element(static_cast<double>(data[i]));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double contribution_on_cpu(Norm norm, const at::Tensor& tensor) {
  if (norm == Norm::kL1) return sum_over(tensor, [](double value) { return std::abs(value); });
  if (norm == Norm::kL2) return sum_over(tensor, [](double value) { return value * value; });
  if (tensor.numel() == 0) return 0;
  const auto [least, most] = at::aminmax(tensor.flatten());  // both NaN if one element is
  return std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
}

}  // namespace

std::vector<double> detail::contributions_by_lists(Norm norm,
                                                   const std::vector<at::Tensor>& tensors) {
  std::vector<double> all(tensors.size(), 0.0);
  std::vector<at::Tensor> with_elements;
  for (const at::Tensor& t : tensors) {
    if (t.numel() > 0) with_elements.push_back(t);
  }
  if (with_elements.empty()) return all;
  constexpr std::array kOrders = {1.0, 2.0, std::numeric_limits<double>::infinity()};
  const double order = kOrders.at(static_cast<std::size_t>(norm));
  const at::Tensor norms = at::stack(at::_foreach_norm(with_elements, order, at::kDouble)).cpu();
  const double* next = norms.const_data_ptr<double>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    all[i] = norm == Norm::kL2 ? *next * *next : *next;
    ++next;
  }
  return all;
}

std::vector<double> contributions(Norm norm, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty() && !tensors.front().is_cpu()) {
    return detail::contributions_by_lists(norm, tensors);
  }
  std::vector<double> all;
  for (const at::Tensor& tensor : tensors) all.push_back(contribution_on_cpu(norm, tensor));
  return all;
}

double largest_magnitude(const at::Tensor& tensor) {
  return contributions(Norm::kInfinity, {tensor}).front();
}

double squared_norm(const at::Tensor& tensor) { return contributions(Norm::kL2, {tensor}).front(); }

double norm_from_squares(const std::vector<double>& squares) {
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

double norm_from_absolute_sums(const std::vector<double>& sums) {
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

float clip_coefficient(float norm, double max_norm) {
  const auto limit = static_cast<float>(max_norm);
  return std::min(1.0F, limit / (norm + 1e-6F));
}

double clip_coefficient(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace zero::optim
