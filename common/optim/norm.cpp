#include "zero/optim/norm.hpp"

#include <ATen/Dispatch.h>

#include <array>
#include <cmath>

namespace zero::optim {

const char* name(Norm norm) { return norm == Norm::kL2 ? "L2" : "infinity"; }

float largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0.0F : tensor.abs().amax().item<float>();
}

double squared_norm(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.cpu().contiguous();
  // Eight sums that do not wait for each other; which element goes to which never changes.
  std::array<double, 8> sums{};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dense.scalar_type(), "squared_norm",
                                  [&] {
                                    const scalar_t* data = dense.const_data_ptr<scalar_t>();
                                    for (std::int64_t i = 0; i < dense.numel(); ++i) {
                                      const auto value = static_cast<double>(data[i]);
                                      sums[static_cast<std::size_t>(i % 8)] += value * value;
                                    }
                                  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

float norm_from_squares(const std::vector<double>& squares) {
  double total = 0.0;
  for (const double square : squares) total += square;
  return static_cast<float>(std::sqrt(total));
}

float clip_coefficient(float norm, double max_norm) {
  const auto limit = static_cast<float>(max_norm);
  return norm <= limit ? 1.0F : limit / (norm + 1e-6F);
}

}  // namespace zero::optim
