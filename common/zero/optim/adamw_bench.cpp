// Our AdamW beside LibTorch's own, one thread.   ./run bench adamw

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <chrono>

#include <tests/bench/bench.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::optim {
namespace {

constexpr std::int64_t kElements = 1'000'000;  // of a tensor

struct Settings {
  std::int64_t millions = 20;  // of parameters, a tensor for each
  int steps = 10;
};

std::vector<at::Tensor> parameters(const Settings& settings) {
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < settings.millions; ++i) {
    all.push_back(at::randn({kElements}));
    all.back().mutable_grad() = at::randn({kElements});
  }
  return all;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : parameters) {
    all.push_back(parameter.clone());
    all.back().mutable_grad() = parameter.grad();
  }
  return all;
}

template <typename Optimizer>
std::vector<double> seconds_of(Optimizer& optimizer, int steps) {
  std::vector<double> seconds;
  optimizer.step();  // makes the moments
  for (int i = 0; i < steps; ++i) {
    const auto started = std::chrono::steady_clock::now();
    optimizer.step();
    const auto time = std::chrono::steady_clock::now() - started;
    seconds.push_back(std::chrono::duration<double>(time).count());
  }
  return seconds;
}

bench::Measured with_bandwidth(std::vector<double> seconds, const Settings& settings) {
  // The least that a step can move: parameter, gradient and two moments are read, all but the
  // gradient written.
  const double bytes = 7.0 * sizeof(float) * kElements * static_cast<double>(settings.millions);
  const double time = bench::median(seconds);
  return {std::move(seconds), {{"gb_per_s", bytes / time / 1e9}}};
}

std::vector<double> libtorch_seconds(std::vector<at::Tensor> parameters, const AdamWOptions& like,
                                     int steps) {
  torch::optim::AdamW optimizer(std::move(parameters),
                                torch::optim::AdamWOptions(like.learning_rate)
                                    .betas({like.beta1, like.beta2})
                                    .eps(like.epsilon)
                                    .weight_decay(like.weight_decay));
  return seconds_of(optimizer, steps);
}

bench::Measured ours(const Settings& settings) {
  at::set_num_threads(1);
  const AdamWOptions options;
  const std::vector<at::Tensor> mine = parameters(settings);
  const std::vector<at::Tensor> theirs = copies(mine);
  const auto optimizer = adamw(options)(mine);
  bench::Measured measured = with_bandwidth(seconds_of(*optimizer, settings.steps), settings);
  libtorch_seconds(theirs, options, settings.steps);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (!at::allclose(mine[i], theirs[i], /*rtol=*/1e-5, /*atol=*/1e-6)) {
      throw Error(fmt::format("tensor {} is not what torch::optim::AdamW makes of it", i));
    }
  }
  return measured;
}

bench::Measured libtorch(const Settings& settings) {
  at::set_num_threads(1);
  return with_bandwidth(libtorch_seconds(parameters(settings), {}, settings.steps), settings);
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App options{"AdamW on one thread, ours beside LibTorch's."};
  options.add_option("--millions", settings.millions, "of parameters")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  options.add_option("--steps", settings.steps, "after a first one that is not counted")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  return bench::run(argc, argv, options, [&] {
    bench::add(fmt::format("adamw/{}M/ours", settings.millions), [&] { return ours(settings); });
    bench::add(fmt::format("adamw/{}M/libtorch", settings.millions),
               [&] { return libtorch(settings); });
  });
}

}  // namespace
}  // namespace zero::optim

int main(int argc, char** argv) { return zero::optim::run(argc, argv); }
