// One device and one process: what its allocator counts, tensors whose storage was released, and
// how often the host waits for the device.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include <tests/support/in_process.hpp>
#include <tests/support/thrown_by.hpp>
#include <tools/models/mlp.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/norm.hpp>

#include "on_device.hpp"

namespace zero::testing {
namespace {

// Live requested bytes, before rounding, as the device's allocator counts them.
std::int64_t live_bytes(at::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(0);
  return stats.requested_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .current;
}

TEST_P(OneDevice, CountsByCategory) {
  const std::string failure = run_in_process([kind = GetParam()]() -> std::string {
    const at::Device device(kind.type);
    kind.count_blocks();
    const memory::Snapshot before = memory::snapshot();
    {
      const memory::Charge charge(memory::Category::kGradients);
      const at::Tensor t = at::empty({1001}, at::TensorOptions(device).dtype(at::kByte));
      if (memory::snapshot()[memory::Category::kGradients] != 1001) return "not charged";
      if (live_bytes(device) != 1001) return "not what LibTorch counts";
      memory::recharge(t, memory::Category::kOptimizer);
      if (memory::snapshot()[memory::Category::kOptimizer] != 1001) return "not recharged";
    }
    return memory::snapshot().current == before.current ? "" : "not freed";
  });
  EXPECT_EQ(failure, "");
}

TEST_P(OneDevice, StorageRefusesAccessToBytesThatAreNotThere) {
  const std::string failure = run_in_process([kind = GetParam()]() -> std::string {
    const at::Device device(kind.type);
    const at::Tensor t = at::full({64, 64}, 2.0F, device), view = t.narrow(0, 1, 3);
    const std::int64_t before = live_bytes(device);
    memory::release_storage(t, "the text of this test");
    if (live_bytes(device) != before - 64 * 64 * 4) return "not freed";
    const std::vector<std::function<void()>> accesses = {
        [&] { t.add(1); }, [&] { t.mm(t); },       [&] { view.sum(); },
        [&] { t.cpu(); },  [&] { view.fill_(1); }, [&] { t[0][0].item<float>(); }};
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (thrown_by(accesses[i]).find("the text of this test") == std::string::npos) {
        return fmt::format("access {} was not refused: '{}'", i, thrown_by(accesses[i]));
      }
    }
    memory::allocate_storage(t);
    t.fill_(3);
    if (!at::equal(view.cpu(), at::full({3, 64}, 3.0F))) return "not there again";
    return "";
  });
  EXPECT_EQ(failure, "");
}

TEST_P(OneDevice, StorageShowsTheBytesOfAnother) {
  const std::string failure = run_in_process([kind = GetParam()]() -> std::string {
    const at::Device device(kind.type);
    const at::Tensor lender = at::full({8}, 5.0F, device);
    const at::Tensor t = memory::without_storage({2, 4}, at::kFloat, device);
    memory::borrow_storage(t, lender);
    t.mul_(2);
    if (!at::equal(lender.cpu(), at::full({8}, 10.0F))) return "other bytes";
    memory::release_storage(t);
    if (!at::equal(lender.cpu(), at::full({8}, 10.0F))) return "the lender lost its bytes";
    const at::Tensor buffer = at::ones({16}, device);
    memory::place(t, buffer, 8);
    buffer.narrow(0, 8, 8).fill_(7);
    return at::equal(t.cpu(), at::full({2, 4}, 7.0F)) ? "" : "not a window of the buffer";
  });
  EXPECT_EQ(failure, "");
}

std::vector<at::Tensor> parameters_with_gradients(at::Device device, int n, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < n; ++i) {
    all.push_back(at::full({3 + i}, 1.0, at::TensorOptions(device).dtype(dtype)).requires_grad_());
    all.back().mutable_grad() = at::full({3 + i}, 2.0, at::TensorOptions(device).dtype(dtype));
  }
  return all;
}

// The counter sees every wait. Otherwise the 0 in the next test would prove nothing.
TEST_P(OneDevice, HostWaitsAreCountedHere) {
  const std::string waits = run_in_process([kind = GetParam()] {
    const at::Device device(kind.type);
    const at::Tensor t = at::ones({4}, device);
    return std::to_string(kind.host_waits_in([&] { t.cpu(), t.sum().item<float>(); }));
  });
  EXPECT_EQ(waits, "2");
}

TEST_P(OneDevice, HostWaitsAreNoneInTheUpdateOfMasterWeights) {
  const std::string waits = run_in_process([kind = GetParam()] {
    const at::Device device(kind.type);
    const auto parameters = parameters_with_gradients(device, 100, at::kBFloat16);
    const auto optimizer = optim::with_master_weights(optim::adamw())(parameters);
    optimizer->set_gradient_scale(4);
    return std::to_string(kind.host_waits_in([&] {
      optimizer->step();
      optimizer->step();
    }));
  });
  EXPECT_EQ(waits, "0");
}

TEST_P(OneDevice, HostWaitsAreOneForTheNormOfAllGradients) {
  const std::string failure = run_in_process([kind = GetParam()]() -> std::string {
    const at::Device device(kind.type);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : parameters_with_gradients(device, 100, at::kFloat)) {
      gradients.push_back(p.grad());
    }
    for (const auto of : {optim::squared_norms, optim::largest_magnitudes}) {
      std::vector<double> found;
      const int waits = kind.host_waits_in([&] { found = of(gradients); });
      if (waits != 1) return fmt::format("{} waits", waits);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double expected = of({gradients[i].cpu()}).front();
        if (std::abs(found[i] - expected) > 1e-12 * expected) {
          return fmt::format("of {}: {}, not {}", i, found[i], expected);
        }
      }
    }
    return "";
  });
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace zero::testing
