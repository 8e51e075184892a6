// How many operations the library starts on a device, where each is a launch, or several.

#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/accelerator/accelerator.hpp>
#include <tests/support/accelerator/checker.hpp>
#include <tests/support/in_process.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/functional.hpp>

namespace zero::nn {
namespace {

// While it lives, counts LibTorch's operations on this thread.
class Operations {
 public:
  Operations() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~Operations() { at::removeCallback(handle_); }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    thread_local std::map<std::string, int> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts()[function.name()];
    return nullptr;
  }

  at::CallbackHandle handle_;
};

// The logits of 8,192 tokens of a vocabulary of 49,152, which are too many for a test.
TEST(DeviceLaunches, OfACrossEntropyAreThoseOfAFewLargeBlocks) {
  const std::int64_t on_device = cross_entropy_rows(at::kCUDA, 49152);
  EXPECT_EQ((8192 + on_device - 1) / on_device, 13);
  // An operation a block, in forward and in backward.
  const std::int64_t rows = cross_entropy_rows(at::kCPU, 1 << 18);
  ASSERT_EQ(rows, 4);
  const std::string counted = testing::run_in_process([] {
    const at::Tensor logits = at::ones({10, 1 << 18}).requires_grad_();
    const Operations operations;
    consuming_cross_entropy(logits * 1.0, at::arange(10), 10).backward();
    return fmt::format("{} {}", operations.of("aten::logsumexp"),
                       operations.of("aten::scatter_add_"));
  });
  EXPECT_EQ(counted, "6 3");  // three blocks; logsumexp calls itself, with an output
}

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
