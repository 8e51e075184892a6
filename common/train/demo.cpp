#include "zero/train/demo.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

#include "zero/data/dataset.hpp"
#include "zero/data/sampler.hpp"
#include "zero/distributed/launch.hpp"
#include "zero/error.hpp"
#include "zero/memory/accounting.hpp"
#include "zero/memory/storage.hpp"
#include "zero/nn/mlp.hpp"
#include "zero/report/table.hpp"
#include "zero/train/trainer.hpp"

namespace zero::train {
namespace {

using memory::Category;

struct DemoOptions {
  std::string mode;
  int world_size = 2;
  std::int64_t steps = 20;
  double timeout_seconds = 60;
  bool narrate = false;
  void (*register_chapter)(Registry&) = nullptr;
};

nn::MlpConfig config_of(const DemoOptions& options) {
  nn::MlpConfig config;
  if (options.narrate) {  // 2 x 2 + 2 and 2 x 2 + 2: twelve parameters, few enough to print
    config.inputs = 2;
    config.hidden = {2};
    config.outputs = 2;
  } else {
    config.inputs = 64;
    config.hidden = {256, 256};
    config.outputs = 8;
  }
  return config;
}

// Prints one line per rank, in rank order.
void say(dist::Communicator& communicator, const std::string& title, const std::string& line) {
  const std::vector<std::string> lines = communicator.exchange(line);
  if (communicator.rank() != 0) return;
  fmt::print("{}\n", title);
  for (std::size_t rank = 0; rank < lines.size(); ++rank)
    fmt::print("  rank {}  {}\n", rank, lines[rank]);
  std::fflush(stdout);
}

std::string letters(const Strategy& strategy, const std::function<bool(std::size_t)>& holds) {
  std::string text;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    text += fmt::format(" {}", holds(i) ? std::string(static_cast<std::size_t>(p.numel()),
                                                      static_cast<char>('a' + i))
                                        : std::string(static_cast<std::size_t>(p.numel()), '.'));
  }
  return text;
}

// Who holds what now: a letter for each element of each parameter, a dot where there is nothing.
std::string holdings(Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  return fmt::format(
      "parameters{}   gradients{}   moments{}",
      letters(strategy,
              [&](std::size_t i) { return memory::has_storage(list.parameters[i].tensor); }),
      letters(strategy, [&](std::size_t i) { return list.parameters[i].tensor.grad().defined(); }),
      letters(strategy, [&](std::size_t i) {
        return !strategy.optimizer().state(list.parameters[i].tensor).empty();
      }));
}

void narrate(Strategy& strategy, const data::Batch& batch) {
  dist::Communicator& communicator = strategy.communicator();
  if (communicator.rank() == 0) {
    fmt::print("12 parameters in {} tensors:", strategy.list().size());
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      fmt::print(" {}={}", static_cast<char>('a' + i), strategy.list().parameters[i].name);
    }
    fmt::print("\n\n");
  }
  const auto tell = [&](const std::string& when) { say(communicator, when, holdings(strategy)); };
  tell("at the start");
  for (int s = 1; s <= 2; ++s) {
    strategy.zero_grad();
    const dist::Traffic before = communicator.traffic();
    const at::Tensor loss = strategy.forward(batch);
    tell(fmt::format("step {}: after forward", s));
    strategy.backward(loss);
    strategy.finish_backward();
    tell(fmt::format("step {}: after backward and the reduction of gradients", s));
    strategy.optimizer_step();
    strategy.sync_parameters();
    tell(fmt::format("step {}: after the optimizer and sync_parameters", s));
    const dist::Traffic sent = communicator.traffic().since(before);
    say(communicator, fmt::format("step {}: sent", s),
        fmt::format("{} bytes of gradients, {} bytes of parameters, loss {:.6f}",
                    sent.bytes(dist::Purpose::kGradient), sent.bytes(dist::Purpose::kParameter),
                    loss.item<double>()));
  }
}

std::string row_of(const Strategy& strategy, const memory::Snapshot& held,
                   const dist::Traffic& sent, const PhaseSeconds& seconds) {
  const auto kib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024.0; };
  const ModelStateBytes formula = strategy.predicted_bytes();
  return fmt::format(
      "held {:8.1f} + {:8.1f} + {:8.1f} = {:8.1f} KiB (formula {:8.1f}), sent {:8.1f} KiB (formula "
      "{:8.1f}), {:.2f} ms a step",
      kib(held[Category::kParameters]), kib(held[Category::kGradients]),
      kib(held[Category::kOptimizer]), kib(held.model_states()), kib(formula.total()),
      kib(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter)),
      kib(strategy.predicted_traffic()), seconds.total * 1e3);
}

std::string train_rank(dist::Communicator& communicator, const DemoOptions& options) {
  communicator.agree("the run", fmt::format("mode {}\n{} steps\n{}", options.mode, options.steps,
                                            options.narrate ? "narrated" : "not narrated"));
  const nn::MlpConfig config = config_of(options);
  const auto dataset = data::toy_regression(/*seed=*/1, /*n=*/4096, config.inputs, config.outputs);
  data::DistributedSampler sampler(dataset.size(), 32 * communicator.size(), communicator.rank(),
                                   communicator.size(), /*seed=*/1);
  std::shared_ptr<nn::Mlp> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Mlp>(config);
  }
  nn::SeededValues values(/*seed=*/7);
  Registry registry;
  options.register_chapter(registry);
  const auto strategy =
      registry.make(options.mode, {*model, communicator, optim::adamw(), &values, /*variant=*/""});
  if (options.narrate) {
    narrate(*strategy, dataset.batch(sampler.next()));
    return "";
  }
  Trainer trainer(*strategy);
  StepResult result;
  dist::Traffic before;
  for (std::int64_t s = 0; s < options.steps; ++s) {
    before = communicator.traffic();
    result = trainer.step({dataset.batch(sampler.next())});
    if (communicator.rank() == 0 && (s == 0 || (s + 1) % 5 == 0)) {
      fmt::print("step {:3}  loss {:.6f}\n", s + 1, result.loss);
    }
  }
  const memory::Snapshot held = memory::snapshot();
  const dist::Traffic sent = communicator.traffic().since(before);
  say(communicator, fmt::format("{}, parameters + gradients + optimizer:", options.mode),
      row_of(*strategy, held, sent, result.seconds));
  return "";
}

int launch(const DemoOptions& options) {
  dist::ConnectOptions connect;
  connect.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1000));
  if (const auto environment = dist::rank_environment()) {
    train_rank(*dist::connect(*environment, connect), options);
    return 0;
  }
  dist::LaunchOptions launch;
  launch.world_size = options.world_size;
  launch.connect = connect;
  const auto exits = dist::launch_ranks(
      launch, [&](dist::Communicator& communicator) { return train_rank(communicator, options); });
  const std::string failures = dist::describe_failures(exits);
  std::cerr << failures;
  return failures.empty() ? 0 : 1;
}

}  // namespace

int run_demo(int argc, char** argv, const std::string& mode, void (*register_chapter)(Registry&)) {
  DemoOptions options;
  options.mode = mode;
  options.register_chapter = register_chapter;
  CLI::App app{"Trains a small MLP under " + mode + " and prints what each rank held and sent."};
  app.add_option("--mode", options.mode, "a variant, for example " + mode + ":…")
      ->capture_default_str();
  auto* nproc = app.add_option("--nproc", options.world_size, "ranks (without a launcher)")
                    ->capture_default_str()
                    ->check(CLI::Range(1, 64));
  app.add_option("--steps", options.steps, "steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--timeout", options.timeout_seconds, "longest wait for another rank, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  app.add_flag("--narrate", options.narrate, "3 ranks, 12 parameters: who holds what, when");
  CLI11_PARSE(app, argc, argv);
  if (options.narrate && nproc->count() == 0) options.world_size = 3;
  try {
    memory::install();
    return launch(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace zero::train
