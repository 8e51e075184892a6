// What it costs that the engine watches a plain module: a step of one beside a step of the same
// blocks as units, in turn on the same ranks.
//   ./run bench plain --help

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <chrono>

#include <zero/base/error.hpp>
#include <zero/engine.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "bench.hpp"

namespace zero::bench {
namespace {

struct Settings {
  std::int64_t width = 768;
  std::int64_t layers = 12;
  std::int64_t tokens = 64;
  int stage = 3;
  int world_size = 2;
  int steps = 12;
};

constexpr std::int64_t kWords = 20000;

// A block of GPT-2, and the same as a unit.
struct Block : torch::nn::Module {
  explicit Block(std::int64_t width)
      : norm1(register_module("norm1", torch::nn::LayerNorm(std::vector{width}))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector{width}))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor heads = qkv(norm1(x)).view({x.size(0), x.size(1), 8, -1});
    const auto parts = heads.transpose(1, 2).chunk(3, 3);
    const at::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return x + down(at::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};

struct UnitBlock : nn::Unit {
  explicit UnitBlock(std::int64_t width)
      : block(register_module("block", std::make_shared<Block>(width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return block->forward(x); });
  }
  std::shared_ptr<Block> block;
};

// The root has the embedding, which is the head.
template <typename Base, typename Part>
struct Gpt : Base {
  explicit Gpt(const Settings& settings)
      : words(this->register_module("words", torch::nn::Embedding(kWords, settings.width))) {
    for (std::int64_t i = 0; i < settings.layers; ++i) {
      parts.push_back(
          this->register_module(fmt::format("{}", i), std::make_shared<Part>(settings.width)));
    }
  }
  at::Tensor loss_of(const at::Tensor& ids) {
    at::Tensor x = words(ids.narrow(1, 0, ids.size(1) - 1));
    for (const auto& part : parts) x = part->forward(x);
    const at::Tensor logits = at::linear(x, words->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1),
                                  ids.narrow(1, 1, ids.size(1) - 1).flatten());
  }
  torch::nn::Embedding words;
  std::vector<std::shared_ptr<Part>> parts;
};

struct PlainGpt : Gpt<torch::nn::Module, Block> {
  using Gpt::Gpt;
};

struct UnitGpt : Gpt<nn::Unit, UnitBlock> {
  using Gpt::Gpt;
  at::Tensor loss(const at::Tensor& ids) {
    return run([&] { return loss_of(ids); });
  }
};

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

std::int64_t digest_of(train::Strategy& strategy) {
  double sum = 0;
  for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : strategy.list().units[u].parameters) {
      sum += strategy.list().parameters[i].tensor.detach().sum(at::kDouble).item<double>();
    }
  }
  return std::bit_cast<std::int64_t>(sum);
}

// One rank: seconds and processor seconds of each, step by step.
Json train_both(dist::Communicator& communicator, const Settings& settings) {
  at::manual_seed(1);
  PlainGpt plain(settings);
  at::manual_seed(1);
  UnitGpt units(settings);
  const EngineConfig config{.stage = settings.stage};
  Engine watched(plain, communicator, optim::adamw(), config, [&](const torch::nn::Module&) {
    std::vector<std::string> blocks;
    for (std::int64_t i = 0; i < settings.layers; ++i) blocks.push_back(fmt::format("{}", i));
    return blocks;
  });
  Engine wrapped(units, communicator, optim::adamw(), config);
  std::map<std::string, std::vector<double>> figures;
  for (int s = 0; s < settings.steps; ++s) {
    at::manual_seed(static_cast<std::uint64_t>(100 * s + communicator.rank()));
    const at::Tensor ids = at::randint(kWords, {1, settings.tokens + 1}, at::kLong);
    const auto time = [&](const std::string& name, Engine& engine, const auto& forward) {
      communicator.barrier();
      const auto begin = std::chrono::steady_clock::now();
      const double used = processor_seconds();
      engine.backward(forward());
      engine.step();
      if (s == 0) return;  // makes the moments and warms everything up
      figures[name + "_cpu"].push_back(processor_seconds() - used);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      figures[name].push_back(took.count());
    };
    const auto step_plain = [&] {
      time("plain", watched, [&] { return watched.forward([&] { return plain.loss_of(ids); }); });
    };
    const auto step_units = [&] {
      time("units", wrapped, [&] { return wrapped.forward([&] { return units.loss(ids); }); });
    };
    if (s % 2 == 0) step_plain();
    step_units();
    if (s % 2 == 1) step_plain();
  }
  if (digest_of(watched.strategy()) != digest_of(wrapped.strategy())) {
    throw Error("the plain module ended with other weights than its units");
  }
  return {{"figures", figures}, {"millions", watched.strategy().list().numel() / 1'000'000}};
}

Measured measure(const Settings& settings) {
  dist::LaunchOptions launch;
  launch.world_size = settings.world_size;
  const std::vector<Json> ranks =
      on_ranks(launch, [&](dist::Communicator& c) { return train_both(c, settings); });
  std::vector<Json> figures;
  for (const Json& rank : ranks) figures.push_back(rank.at("figures"));
  Measured measured{slowest(figures, "plain")};
  measured.counters["millions"] = ranks.at(0).at("millions").get<double>();
  for (const char* suffix : {"", "_cpu"}) {
    const auto plain = slowest(figures, fmt::format("plain{}", suffix));
    const auto units = slowest(figures, fmt::format("units{}", suffix));
    std::vector<double> ratios;
    for (std::size_t i = 0; i < plain.size(); ++i) ratios.push_back(plain[i] / units[i]);
    measured.counters[fmt::format("plain{}_s", suffix)] = median(plain);
    measured.counters[fmt::format("units{}_s", suffix)] = median(units);
    measured.counters[fmt::format("ratio{}", suffix)] = median(ratios);
  }
  return measured;
}

int run_plain(int argc, char** argv) {
  memory::install();
  Settings settings;
  CLI::App options{"A step of a plain module beside one of the same blocks as units."};
  number(options, "--width", settings.width, "of a block, a multiple of 8", 1, 100000);
  number(options, "--layers", settings.layers, "blocks", 1, 100000);
  number(options, "--tokens", settings.tokens, "of each rank's one sequence", 1, 100000);
  number(options, "--nproc", settings.world_size, "ranks", 1, 100000);
  number(options, "--steps", settings.steps, "steps of each, of which the first is not counted", 1,
         100000);
  number(options, "--stage", settings.stage, "of the engine", 0, 3);
  return run(argc, argv, options, [&] {
    add(fmt::format("plain/stage:{}/ranks:{}", settings.stage, settings.world_size),
        [&settings] { return measure(settings); });
  });
}

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) { return zero::bench::run_plain(argc, argv); }
