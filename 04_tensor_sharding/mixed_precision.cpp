// Mixed precision in its flat form, by hand: a three-layer MLP in bfloat16 whose parameters form
// one buffer, and a float32 master copy of which every rank keeps a shard. Next to it the same with
// the whole master copy on every rank, as in plain data parallelism; both must end with the same
// weights.
//   build/release/bin/mixed_precision [ranks]

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <memory>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::memory::Category;
using zero::memory::Charge;
using zero::memory::raw;  // the same bytes, unknown to autograd

constexpr int kSteps = 20;

class FlatMixedPrecision {
 public:
  /// `sharded`: this rank keeps 1/N of the master copy and of its moments; otherwise all of it.
  FlatMixedPrecision(torch::nn::Module& model, Communicator& communicator, bool sharded)
      : list_(zero::nn::list_parameters(model)),
        communicator_(communicator),
        sharded_(sharded),
        layout_(sizes(), communicator.size()) {
    const at::Tensor mine = of_this_rank(flatten([](const at::Tensor& p) { return p; }));
    const Charge charge(Category::kOptimizer);
    master_ = mine.to(at::kFloat);
    optimizer_ = zero::optim::adamw({.learning_rate = 3e-3})({master_});
  }

  void step() {
    // Flatten the gradients and average them: all of them, or the part that is updated here. `mine`
    // is a view of `flat`, so both collectives work in place and one buffer serves for everything.
    at::Tensor flat = flatten([](const at::Tensor& p) { return p.grad(); });
    at::Tensor mine = of_this_rank(flat);
    if (sharded_) {
      communicator_.reduce_scatter(mine, flat, Purpose::kGradient).wait();
    } else {
      communicator_.all_reduce(flat, Purpose::kGradient).wait();
    }
    // Update the master copy in float32. Its gradient is needed only here.
    master_.mutable_grad() = mine.to(at::kFloat);
    optimizer_->step();
    master_.mutable_grad().reset();
    // Round it into the buffer, over the gradients, which are no longer needed. Then make the
    // buffer whole again and unflatten it.
    mine.copy_(master_);
    if (sharded_) communicator_.all_gather(flat, mine, Purpose::kParameter).wait();
    unflatten(flat);
  }

 private:
  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> all;
    for (const zero::nn::Parameter& p : list_.parameters) all.push_back(p.numel());
    return all;
  }

  // The part of a buffer that this rank updates.
  at::Tensor of_this_rank(const at::Tensor& flat) const {
    if (!sharded_) return flat;
    return flat.narrow(0, communicator_.rank() * layout_.shard(), layout_.shard());
  }

  // The place of parameter `i` in a buffer.
  at::Tensor place_of(std::size_t i, const at::Tensor& flat) const {
    const at::Tensor& p = list_.parameters[i].tensor;
    return flat.narrow(0, layout_.offset(i), layout_.size(i)).view(p.sizes());
  }

  // All parameters or all gradients, one after the other; `what` returns one or the other.
  template <typename What>
  at::Tensor flatten(const What& what) const {
    const Charge charge(Category::kCommunication);
    at::Tensor flat = at::zeros({layout_.total()}, at::kBFloat16);
    for (std::size_t i = 0; i < list_.size(); ++i) {
      place_of(i, flat).copy_(raw(what(list_.parameters[i].tensor)));
    }
    return flat;
  }

  void unflatten(const at::Tensor& flat) const {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      raw(list_.parameters[i].tensor).copy_(place_of(i, flat));
    }
  }

  zero::nn::ParameterList list_;
  Communicator& communicator_;
  bool sharded_;
  zero::train::ShardLayout layout_;
  at::Tensor master_;  // [shard], or [total]
  std::unique_ptr<zero::optim::Optimizer> optimizer_;
};

// The result of one training run on this rank.
struct TrainingRun {
  std::vector<double> losses;  // mean over ranks
  zero::memory::Snapshot held;
  std::vector<at::Tensor> weights;
  std::int64_t parameters = 0;
};

double mean_over_ranks(Communicator& communicator, double value) {
  at::Tensor t = at::zeros({1}, at::kDouble).fill_(value);
  communicator.all_reduce(t, Purpose::kControl).wait();
  return t.item<double>();
}

// Other data on every rank and in every step; here it is made up.
at::Tensor inputs_of(int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  return at::randn({32, 64});
}

// The same seed gives the same values on every rank: nothing has to be sent.
torch::nn::Sequential make_model() {
  using torch::nn::Linear, torch::nn::Tanh;
  const Charge charge(Category::kParameters);
  at::manual_seed(7);
  torch::nn::Sequential model(Linear(64, 256), Tanh(), Linear(256, 256), Tanh(), Linear(256, 64));
  model->to(at::kBFloat16);
  return model;
}

TrainingRun train(Communicator& communicator, bool sharded) {
  TrainingRun run;
  const zero::memory::Snapshot before = zero::memory::snapshot();
  torch::nn::Sequential model = make_model();
  FlatMixedPrecision flat(*model, communicator, sharded);
  for (int step = 0; step < kSteps; ++step) {
    for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
    const at::Tensor inputs = inputs_of(communicator.rank(), step);
    const at::Tensor outputs = model->forward(inputs.to(at::kBFloat16));
    const at::Tensor loss = at::mse_loss(outputs.to(at::kFloat), inputs.abs());
    const Charge charge(Category::kGradients);
    loss.backward();
    flat.step();
    run.losses.push_back(mean_over_ranks(communicator, loss.item<double>()));
  }
  run.held = zero::memory::snapshot();
  for (std::size_t c = 0; c < run.held.current.size(); ++c) {
    run.held.current[c] -= before.current[c];
  }
  for (const at::Tensor& p : model->parameters()) {
    run.weights.push_back(p.detach().clone());
    run.parameters += p.numel();
  }
  return run;
}

void print_tables(Communicator& communicator, const TrainingRun& whole,
                  const TrainingRun& sharded) {
  fmt::print("A three-layer MLP in bfloat16, {} parameters, {} ranks, {} steps, AdamW. Loss:\n\n",
             zero::base::with_thousands(whole.parameters), communicator.size(), kSteps);
  fmt::print("step       DDP  sharded master\n------------------------------\n");
  for (int step : {1, 5, 10, 15, 20}) {
    const auto s = static_cast<std::size_t>(step - 1);
    fmt::print("{:4}{:10.6f}{:16.6f}\n", step, whole.losses[s], sharded.losses[s]);
  }
  fmt::print("\nHeld by rank 0 after the last step:\n\n{:26}{:>12}{:>11}{:>18}{:>9}{:>8}{:>9}\n",
             "KiB", "parameters", "gradients", "master + moments", "total", "ratio", "formula");
  fmt::print("{:-<93}\n", "");
  const auto print = [&](const char* name, const TrainingRun& run, double formula) {
    const auto kib = [&](Category c) { return static_cast<double>(run.held[c]) / 1024; };
    const auto total = static_cast<double>(run.held.model_states());
    fmt::print("{:26}{:12.2f}{:11.2f}{:18.2f}{:9.2f}{:8.4f}{:9.2f}\n", name,
               kib(Category::kParameters), kib(Category::kGradients), kib(Category::kOptimizer),
               total / 1024, total / static_cast<double>(whole.held.model_states()),
               formula / 1024);
  };
  const auto p = static_cast<double>(whole.parameters);
  print("DDP, 16P", whole, 16 * p);
  print("sharded master, 4P + 12P/N", sharded, 4 * p + 12 * p / communicator.size());
  fmt::print("\n");
}

void run(Communicator& communicator) {
  const TrainingRun whole = train(communicator, /*sharded=*/false);
  const TrainingRun sharded = train(communicator, /*sharded=*/true);
  if (communicator.rank() == 0) print_tables(communicator, whole, sharded);
  for (std::size_t i = 0; i < whole.weights.size(); ++i) {
    if (!at::equal(whole.weights[i], sharded.weights[i])) {
      throw zero::Error("a sharded master copy gave other weights than a whole one");
    }
  }
  if (whole.losses != sharded.losses || !(whole.losses.back() < whole.losses.front())) {
    throw zero::Error("the losses differ, or do not fall");
  }
  communicator.barrier();
  if (communicator.rank() == 0)
    fmt::print("on every rank both ways gave the same weights: checked\n");
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();
  zero::dist::LaunchOptions options;
  options.world_size = 2;
  CLI::App app{"Trains with a master copy on every rank, then with a sharded one, and compares."};
  app.add_option("ranks", options.world_size, "how many")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);
  return zero::run_program("mixed_precision", [&] {
    const auto exits = zero::dist::launch_ranks(options, [](Communicator& communicator) {
      run(communicator);
      return std::string();
    });
    zero::dist::check_all_well(exits);
    return 0;
  });
}
