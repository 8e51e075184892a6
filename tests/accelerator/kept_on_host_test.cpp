// Inputs of activation checkpoints in the host's memory: bits, bytes of the device, of the host and
// of the bus, and copies that nobody waits for.

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <10_offload/kept_on_host.hpp>
#include <tests/support/accelerator/device_memory.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/accelerator/pinned_memory.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/same_bits.hpp>
#include <tools/plan/offload.hpp>
#include <zero/engine.hpp>

#include "llama_on.hpp"

namespace zero::testing {
namespace {

using emulated::kDevice;

nn::CheckpointOptions kept(bool on_host) { return {.keep = on_host ? keep_on_host : nullptr}; }

ZERO_TESTS_ON_RANKS(CheckpointsOnHost, 1, 2, 3);

std::vector<at::Tensor> trained_llama(dist::Communicator& communicator, const std::string& mode,
                                      at::Device device, bool on_host, at::ScalarType dtype) {
  LlamaOn run(communicator, mode, device, kept(on_host), dtype);
  for (int step = 0; step < 3; ++step) run.step(step, /*micro_batches=*/2);
  return run.weights();
}

TEST_P(CheckpointsOnHost, HaveTheBitsOfThoseOnTheDevice) {
  emulated::on_emulated_ranks({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    for (const auto& [mode, dtype] : std::vector<std::pair<std::string, at::ScalarType>>{
             {"zero3", at::kFloat}, {"engine3", at::kFloat}, {"engine3", at::kBFloat16}}) {
      SCOPED_TRACE(fmt::format("{} {}", mode, c10::toString(dtype)));
      const auto trained = [&](at::Device device, bool on_host) {
        return trained_llama(communicator, mode, device, on_host, dtype);
      };
      const std::vector<at::Tensor> expected = trained(kDevice, false);
      EXPECT_TRUE(same_bits(trained(kDevice, true), expected));
      EXPECT_TRUE(same_bits(trained(at::kCPU, true), expected));
      emulated::expect_clean();
    }
  });
}

// A module of one's own: equal layers tanh(linear(x)), each in a checkpoint.
class Chain : public torch::nn::Module {
 public:
  Chain(int layers, bool on_host) : on_host_(on_host) {
    for (int i = 0; i < layers; ++i) layers_->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers_);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers_) {
      const nn::CheckpointBody body = [layer](const std::vector<at::Tensor>& inputs) {
        return layer->as<torch::nn::Linear>()->forward(inputs.front()).tanh();
      };
      x = nn::checkpoint(body, {x}, kept(on_host_));
    }
    return x;
  }

  static constexpr std::int64_t kWidth = 32, kRows = 48;
  static constexpr std::int64_t kBytes = kRows * kWidth * 4;  // of a layer's input

 private:
  bool on_host_;
  torch::nn::ModuleList layers_;
};

std::unique_ptr<Chain> seeded_chain(int layers, bool on_host) {
  at::manual_seed(7);
  auto chain = std::make_unique<Chain>(layers, on_host);
  chain->to(kDevice);
  return chain;
}

at::Tensor rows(int seed) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  return at::randn({Chain::kRows, Chain::kWidth}).to(kDevice);
}

TEST_P(CheckpointsOnHost, OfAPlainModuleHaveTheBitsOfThoseOnTheDevice) {
  emulated::on_emulated_ranks({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      const auto trained = [&](bool on_host) {
        const auto chain = seeded_chain(4, on_host);
        Engine engine(*chain, communicator, optim::adamw({.learning_rate = 0.01}), {.stage = stage},
                      nn::default_units(/*bytes=*/1));
        for (int step = 0; step < 3; ++step) {
          const at::Tensor x = rows(100 * step + communicator.rank());
          engine.backward(engine.forward([&] { return chain->forward(x).square().mean(); }));
          EXPECT_TRUE(engine.step());
        }
        std::vector<at::Tensor> weights;
        for (const at::Tensor& t : whole_weights(engine.strategy())) weights.push_back(t.cpu());
        return weights;
      };
      EXPECT_TRUE(same_bits(trained(true), trained(false)));
      emulated::expect_clean();
    }
  });
}

// On one rank, in a process of its own, in which backward has no thread of its own.
void on_one_device(const std::function<void()>& body) {
  emulated::on_emulated_ranks({.world_size = 1}, [&](dist::Communicator&) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    body();
  });
}

std::vector<at::Tensor> gradients(Chain& chain) {
  std::vector<at::Tensor> all;
  for (at::Tensor& p : chain.parameters()) {
    all.push_back(p.grad().cpu());
    p.mutable_grad().reset();
  }
  return all;
}

c10::CachingAllocator::Stat on_device() {
  return emulated::DeviceMemory::get().getDeviceStats(0).requested_bytes[0];
}

std::int64_t on_host() { return emulated::PinnedMemory::get().bytes(); }

struct Held {
  std::int64_t between, host_between;  // forward and backward
  std::int64_t peak;
};

Held held_by(int layers, bool on_host_too) {
  const auto chain = seeded_chain(layers, on_host_too);
  const at::Tensor x = rows(1);
  chain->forward(x).square().sum().backward();  // there are gradients
  emulated::Checker::get().synchronize();
  const std::int64_t before = on_device().current, host_before = on_host();
  emulated::DeviceMemory::get().resetPeakStats(0);
  Held held{};
  const at::Tensor y = chain->forward(x);
  held.between = on_device().current - before;
  held.host_between = on_host() - host_before;
  y.square().sum().backward();
  held.peak = on_device().peak - before;
  EXPECT_EQ(on_device().current, before + Chain::kBytes);  // the output
  emulated::Checker::get().synchronize();
  EXPECT_EQ(on_host(), host_before);
  return held;
}

// The input of the first layer and the gradients are there before.
TEST(CheckpointsOnHostResidency, IsTwoInputsHoweverManyLayers) {
  on_one_device([] {
    constexpr std::int64_t kInput = Chain::kBytes;
    for (const int layers : {3, 5, 9}) {
      SCOPED_TRACE(layers);
      const Held whole = held_by(layers, false), held = held_by(layers, true);
      const plan::InputsOnHost formula = plan::inputs_on_host(layers, kInput);
      EXPECT_EQ(whole.between, layers * kInput);  // all but the first layer's, and the output
      EXPECT_EQ(held.between, 2 * kInput);        // the last layer's, and the output
      EXPECT_EQ(held.host_between, formula.host);
      EXPECT_EQ(whole.host_between, 0);
      // When the last layer runs again.
      EXPECT_EQ(whole.peak - held.peak, (layers - 1) * kInput - formula.device);
    }
  });
}

std::int64_t to_host = 0, to_device = 0;

std::unique_ptr<at::ObserverContext> count_copies(const at::RecordFunction& operation) {
  if (std::string(operation.name()) != "aten::copy_") return nullptr;
  const at::Tensor& to = operation.inputs()[0].toTensor();
  const bool out = !operation.inputs()[1].toTensor().is_cpu();
  if (to.is_cpu() == out) (out ? to_host : to_device) += to.numel() * to.element_size();
  return nullptr;
}

TEST(CheckpointsOnHostBus, AllInputsGoOutAndAllButTheLastComeBack) {
  on_one_device([] {
    for (const int layers : {1, 2, 7}) {
      SCOPED_TRACE(layers);
      const auto chain = seeded_chain(layers, true);
      const at::Tensor x = rows(1);
      at::addGlobalCallback(at::RecordFunctionCallback(count_copies).needsInputs(true));
      to_host = to_device = 0;
      chain->forward(x).square().sum().backward();
      at::clearCallbacks();
      EXPECT_EQ(to_host, layers * Chain::kBytes);
      EXPECT_EQ(to_host + to_device, plan::inputs_on_host(layers, Chain::kBytes).bus);
    }
  });
}

// Several micro-batches at once, in both orders, as in a pipeline; and a graph that is used twice.
TEST(CheckpointsOnHostGraphs, RunBackwardInAnyOrderAndTwice) {
  on_one_device([] {
    const auto run = [](bool on_host, bool last_first, bool again) {
      const auto chain = seeded_chain(3, on_host);
      std::vector<at::Tensor> losses;
      for (int m = 0; m < 3; ++m) losses.push_back(chain->forward(rows(m)).square().sum());
      if (last_first) std::reverse(losses.begin(), losses.end());
      for (const at::Tensor& loss : losses) {
        if (again) loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      }
      return gradients(*chain);
    };
    for (const bool last_first : {false, true}) {
      for (const bool again : {false, true}) {
        SCOPED_TRACE(fmt::format("last first {}, again {}", last_first, again));
        EXPECT_TRUE(same_bits(run(true, last_first, again), run(false, last_first, again)));
      }
    }
    emulated::Checker::get().synchronize();
    EXPECT_EQ(on_host(), 0);
  });
}

// The input of the layer before the last has been fetched, or the copy of the last layer's has
// begun, and nobody wants it.
TEST(CheckpointsOnHostGraphs, CanBeDroppedWhileACopyRuns) {
  on_one_device([] {
    const auto chain = seeded_chain(2, true);
    const at::Tensor x = rows(1);
    const std::int64_t before = on_device().current;
    {
      const at::Tensor y = chain->forward(x);
      torch::autograd::grad({chain->forward(y).sum()}, {y});
    }
    EXPECT_EQ(on_device().current, before);
    emulated::expect_clean();
    chain->forward(x);
    EXPECT_EQ(on_device().current, before);
    emulated::expect_clean();
  });
}

TEST(CheckpointsOnHostErrors, NameWhatTheProgramMayNotDo) {
  on_one_device([] {
    const nn::CheckpointBody tanh = [](const auto& in) { return in[0].tanh(); };
    const auto checkpointed = [&](const at::Tensor& x) {
      return nn::checkpoint(tanh, {x}, kept(true));
    };
    const std::vector<std::string> changed = {"changed in place while it was copied to the host"};
    const at::Tensor x = rows(1).requires_grad_() * 2;
    const at::Tensor y = checkpointed(x);
    x.add_(1);
    expect_error([&] { y.sum().backward(); }, changed);
    expect_error([&] { checkpointed(y); }, changed);
    emulated::Checker::get().take_findings();  // the addition

    int runs = 0;
    const nn::CheckpointBody once = [&](const auto& in) {
      if (++runs > 1) throw Error("not twice");
      return in[0].tanh();
    };
    const at::Tensor loss = nn::checkpoint(once, {rows(2).requires_grad_()}, kept(true)).sum();
    EXPECT_EQ(error_of([&] { loss.backward(); }), "not twice");
    expect_error([&] { loss.backward(); }, {"the inputs of a checkpoint were used"});
  });
}

}  // namespace
}  // namespace zero::testing
