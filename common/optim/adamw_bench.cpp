// Our AdamW beside LibTorch's own: 20 million parameters in 20 tensors, one thread.
//   ./run bench adamw

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <torch/optim/adamw.h>

#include "zero/optim/optimizer.hpp"
#include "zero/optim/torch_optimizer.hpp"

namespace zero::optim {
namespace {

std::vector<at::Tensor> parameters() {
  at::set_num_threads(1);
  std::vector<at::Tensor> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(at::randn({1000, 1000}));
    all.back().mutable_grad() = at::randn({1000, 1000});
  }
  return all;
}

void fused(benchmark::State& state) {
  const auto optimizer = adamw()(parameters());
  optimizer->step();  // makes the moments
  for (auto _ : state) optimizer->step();
}

void libtorch(benchmark::State& state) {
  const auto optimizer = wrap(std::make_unique<torch::optim::AdamW>(parameters(), 1e-3));
  optimizer->step();
  for (auto _ : state) optimizer->step();
}

BENCHMARK(fused)->Name("adamw/fused/20M")->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(libtorch)->Name("adamw/libtorch/20M")->Iterations(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace zero::optim

BENCHMARK_MAIN();
