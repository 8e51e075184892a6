// Our AdamW beside LibTorch's own and beside a plain loop that moves as many bytes, one thread.
//   ./run bench adamw

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <tests/bench/bench.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::optim {
namespace {

constexpr std::int64_t kElements = 1'000'000;  // of a tensor

struct Settings {
  std::int64_t millions = 20;  // of parameters, a tensor for each
  int steps = 10;
};

// Reads four arrays and writes three, as AdamW does, and computes next to nothing.
void add_to_three(float* __restrict a, float* __restrict b, float* __restrict c,
                  const float* __restrict d) {
  for (std::int64_t i = 0; i < kElements; ++i) {
    const float value = d[i];
    a[i] += value, b[i] += value, c[i] += value;
  }
}

// Each step is followed by a pass over as many arrays of the same size.
bench::Measured beside_copy(const Settings& settings, const std::function<void()>& step) {
  std::vector<std::vector<at::Tensor>> sets(static_cast<std::size_t>(settings.millions));
  for (auto& set : sets) {
    for (int i = 0; i < 4; ++i) set.push_back(at::ones({kElements}));
  }
  const auto copy = [&] {
    for (auto& set : sets) {
      const auto data = [&](std::size_t i) { return set[i].mutable_data_ptr<float>(); };
      add_to_three(data(0), data(1), data(2), data(3));
    }
  };
  // Of parameter, gradient and two moments all are read, and all but the gradient written.
  const double bytes = 7.0 * sizeof(float) * kElements * static_cast<double>(settings.millions);
  return bench::beside_copy(settings.steps, bytes, step, copy);
}

bench::Measured libtorch_beside_copy(const Settings& settings, std::vector<at::Tensor> parameters,
                                     const AdamWOptions& like) {
  torch::optim::AdamW optimizer(std::move(parameters),
                                torch::optim::AdamWOptions(like.learning_rate)
                                    .betas({like.beta1, like.beta2})
                                    .eps(like.epsilon)
                                    .weight_decay(like.weight_decay));
  return beside_copy(settings, [&] { optimizer.step(); });
}

bench::Measured ours(const Settings& settings) {
  at::set_num_threads(1);
  const AdamWOptions options;
  const std::vector<at::Tensor> mine = bench::random_parameters(settings.millions);
  const std::vector<at::Tensor> theirs = bench::copies(mine);
  const auto optimizer = adamw(options)(mine);
  bench::Measured measured = beside_copy(settings, [&] { optimizer->step(); });
  libtorch_beside_copy(settings, theirs, options);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (!at::allclose(mine[i], theirs[i], /*rtol=*/1e-5, /*atol=*/1e-6)) {
      throw Error(fmt::format("tensor {} is not what torch::optim::AdamW makes of it", i));
    }
  }
  return measured;
}

bench::Measured libtorch(const Settings& settings) {
  at::set_num_threads(1);
  return libtorch_beside_copy(settings, bench::random_parameters(settings.millions), {});
}

int run(int argc, char** argv) {
  memory::install();  // huge pages, as in a program that trains
  Settings settings;
  CLI::App options{"AdamW on one thread, ours beside LibTorch's and a plain loop."};
  bench::number(options, "--millions", settings.millions, "of parameters", 1, 1000);
  bench::number(options, "--steps", settings.steps, "after a first one that is not counted", 1,
                10000);
  return bench::run(argc, argv, options, [&] {
    bench::add(fmt::format("adamw/{}M/ours", settings.millions), [&] { return ours(settings); });
    bench::add(fmt::format("adamw/{}M/libtorch", settings.millions),
               [&] { return libtorch(settings); });
  });
}

}  // namespace
}  // namespace zero::optim

int main(int argc, char** argv) { return zero::optim::run(argc, argv); }
