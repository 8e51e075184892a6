#include <ATen/Dispatch.h>

#include <array>
#include <cmath>
#include <numeric>

#include <zero/optim/norm.hpp>

namespace zero::optim {

const char* name(Norm norm) {
  switch (norm) {
    case Norm::kL1:
      return "L1";
    case Norm::kL2:
      return "L2";
    case Norm::kInfinity:
      return "infinity";
  }
  return "?";
}

namespace {

template <typename OfElement>
double sum_over(const at::Tensor& tensor, const OfElement& of_element) {
  const at::Tensor dense = tensor.cpu().contiguous();
  // Eight sums that do not wait for each other; which element goes to which never changes.
  std::array<double, 8> sums{};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "sum_over", [&] {
    const scalar_t* data = dense.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < dense.numel(); ++i) {
      sums[static_cast<std::size_t>(i % 8)] += of_element(static_cast<double>(data[i]));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

float largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0.0F : tensor.abs().amax().item<float>();
}

double squared_norm(const at::Tensor& tensor) {
  return sum_over(tensor, [](double value) { return value * value; });
}

double absolute_sum(const at::Tensor& tensor) {
  return sum_over(tensor, [](double value) { return std::abs(value); });
}

float norm_from_squares(const std::vector<double>& squares) {
  return static_cast<float>(std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0)));
}

float norm_from_absolute_sums(const std::vector<double>& sums) {
  return static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0));
}

float clip_coefficient(float norm, double max_norm) {
  const auto limit = static_cast<float>(max_norm);
  return norm <= limit ? 1.0F : limit / (norm + 1e-6F);
}

}  // namespace zero::optim
