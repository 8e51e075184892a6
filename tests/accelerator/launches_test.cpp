// How many operations the library starts on a device, where each is a launch, or several.

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <tests/support/in_process.hpp>
#include <zero/nn/cross_entropy.hpp>

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

}  // namespace
}  // namespace zero::nn
