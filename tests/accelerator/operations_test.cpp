// Operations and models on the device: their bits are the CPU's.

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sort.h>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/toy.hpp>
#include <zero/data/batch.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::testing::emulated {
namespace {

class OperationsTest : public EmulatedTest {};

// Losses and gradients of `model` after a forward and a backward on `device`, on the CPU. The host
// never waits for the device in them.
std::vector<at::Tensor> losses_and_gradients(nn::Model& model, data::Batch batch,
                                             at::Device device) {
  model.to(device);
  batch.inputs = batch.inputs.to(device);
  batch.targets = batch.targets.to(device);
  const auto waits = Checker::get().counts().host_waits;
  const at::Tensor loss = model.loss(batch);
  EXPECT_EQ(loss.device().type(), device.type());
  loss.backward();
  EXPECT_EQ(Checker::get().counts().host_waits, waits);
  std::vector<at::Tensor> all{loss.detach().cpu()};
  for (const at::Tensor& p : model.parameters()) {
    EXPECT_EQ(p.grad().device().type(), device.type());
    all.push_back(p.grad().cpu());
  }
  return all;
}

template <class M, class Config>
std::shared_ptr<M> initialized(const Config& config) {
  auto model = std::make_shared<M>(config);
  nn::SeededValues values(/*seed=*/5);
  nn::initialize_parameters(*model, values);
  return model;
}

// In a process of its own, because autograd starts threads, and later tests fork.
template <class M, class Config>
void expect_bits_of_the_cpu(const Config& config, const data::Batch& batch) {
  on_ranks(1, [&](dist::Communicator&) {
    const auto here = losses_and_gradients(*initialized<M>(config), batch, kDevice);
    const auto on_cpu = losses_and_gradients(*initialized<M>(config), batch, at::kCPU);
    EXPECT_TRUE(same_bits(here, on_cpu));
    expect_clean();
  });
}

TEST_F(OperationsTest, AnMlpHasTheBitsOfTheCpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    nn::MlpConfig config;
    config.dtype = dtype;
    data::Batch batch = Toy(config).batch(0, 0);
    batch.inputs = batch.inputs.to(dtype);
    batch.targets = batch.targets.to(dtype);
    expect_bits_of_the_cpu<nn::Mlp>(config, batch);
  }
}

TEST_F(OperationsTest, ALlamaHasTheBitsOfTheCpu) {
  const nn::LlamaConfig config = nn::preset("tiny");
  data::Batch batch;
  batch.inputs = at::arange(64).remainder(config.vocabulary).view({2, 32});
  batch.targets = at::arange(1, 65).remainder(config.vocabulary).view({2, 32});
  batch.loss_terms = 64;
  expect_bits_of_the_cpu<nn::Llama>(config, batch);
}

TEST_F(OperationsTest, ViewsShareTheirBytes) {
  const at::Tensor t = at::arange(24).to(kDevice).view({4, 6});
  t.t().narrow(0, 1, 2).select(1, 3).fill_(-1);
  t.unfold(1, 2, 2).select(2, 0).mul_(10);
  at::Tensor expected = at::arange(24).view({4, 6});
  expected.t().narrow(0, 1, 2).select(1, 3).fill_(-1);
  expected.unfold(1, 2, 2).select(2, 0).mul_(10);
  EXPECT_TRUE(at::equal(t.cpu(), expected));
}

TEST_F(OperationsTest, OutputsThatAnOperationMakesOrResizes) {
  const at::Tensor host = at::randn({5, 7}), t = host.to(kDevice);
  const auto [values, indices] = at::sort(t, 1);
  EXPECT_TRUE(at::equal(values.cpu(), std::get<0>(at::sort(host, 1))));
  EXPECT_TRUE(at::equal(at::nonzero(t.gt(0)).cpu(), at::nonzero(host.gt(0))));
  EXPECT_TRUE(at::equal(at::cat({t, t}, 1).cpu(), at::cat({host, host}, 1)));
  at::Tensor out = at::empty({0}, kDevice);
  at::sum_out(out, t, at::IntArrayRef{0});
  EXPECT_TRUE(at::equal(out.cpu(), host.sum(0)));
  EXPECT_TRUE(at::equal(t.index({t.gt(0)}).cpu(), host.index({host.gt(0)})));
  at::Tensor resized = t.clone();
  resized.resize_({9, 7});
  EXPECT_TRUE(at::equal(resized.narrow(0, 0, 5).cpu(), host));
  resized.set_();
  EXPECT_EQ(resized.numel(), 0);
}

TEST_F(OperationsTest, RandomNumbersFollowTheDevicesGenerator) {
  const auto draw = [] { return at::empty({20}, kDevice).normal_().cpu(); };
  at::Generator generator = at::globalContext().defaultGenerator(kDevice);
  generator.set_current_seed(7);
  const at::Tensor first = draw(), second = draw();
  EXPECT_FALSE(at::equal(first, second));
  generator.set_current_seed(7);
  generator.set_offset(1);
  EXPECT_TRUE(at::equal(draw(), second));
}

// What makes the host wait is counted: it is what a step on a GPU must not do often.
TEST_F(OperationsTest, HostWaitsAreCounted) {
  const at::Tensor t = at::randn({4}).to(kDevice);
  const auto waits_in = [](const auto& action) {
    const auto before = Checker::get().counts().host_waits;
    action();
    return Checker::get().counts().host_waits - before;
  };
  EXPECT_EQ(waits_in([&] { (t * 2).sum(); }), 0);
  EXPECT_EQ(waits_in([&] { t.cpu(); }), 1);
  EXPECT_EQ(waits_in([&] { t.sum().item<float>(); }), 1);
  EXPECT_EQ(waits_in([&] { at::equal(t, t); }), 1);
  EXPECT_EQ(waits_in([&] { at::nonzero(t); }), 1);
  EXPECT_EQ(waits_in([&] { t.to(at::kCPU, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits_in([&] { current().synchronize(); }), 1);
}

}  // namespace
}  // namespace zero::testing::emulated
