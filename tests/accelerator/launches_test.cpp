// How many operations the library starts on a device, where each is a launch, or several.

#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linspace.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tests/support/accelerator/accelerator.hpp>
#include <tests/support/accelerator/checker.hpp>
#include <tests/support/in_process.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/nn/functional.hpp>

namespace zero::nn {
namespace {

// Forward, and backward to the input and to the weight, which has a sum of its own.
TEST(DeviceLaunches, OfANormAreThoseOfTheFusedOne) {
  const std::string counted = testing::run_in_process([] {
    testing::emulated::enable();
    std::vector<std::vector<at::Tensor>> results;
    std::int64_t launches = 0;
    for (const at::Device device : {at::Device(at::kCPU), testing::emulated::kDevice}) {
      const auto on_device = [&](const at::Tensor& t) { return t.to(device).requires_grad_(); };
      const at::Tensor x = on_device(at::linspace(-3, 5, 60).view({4, 15}));
      const at::Tensor weight = on_device(at::linspace(0.5, 2, 15));
      const at::Tensor gradient = at::linspace(1, -2, 60).view({4, 15}).to(device);
      const auto before = testing::emulated::Checker::get().counts().launches;
      const at::Tensor y = rms_norm(x, weight, 0.1);
      y.backward(gradient);
      launches = testing::emulated::Checker::get().counts().launches - before;
      results.push_back({y.cpu(), x.grad().cpu(), weight.grad().cpu()});
    }
    // What LibTorch's means, which the emulated one takes the place of.
    const at::Tensor x = at::linspace(-3, 5, 60).view({4, 15}), weight = at::linspace(0.5, 2, 15);
    const auto [y, inverse] = at::_fused_rms_norm(x, {15}, weight, 0.1);
    const bool means_the_same = at::allclose(y, results[0][0]) &&
                                at::allclose(inverse, x.square().mean(-1, true).add(0.1).rsqrt());
    return fmt::format("{} {} {}", launches, bool(testing::same_bits(results[0], results[1])),
                       means_the_same);
  });
  EXPECT_EQ(counted, "3 true true");
}

}  // namespace
}  // namespace zero::nn
