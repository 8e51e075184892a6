// ZeRO-2 with a backward that autograd runs. Autograd makes the gradients, so it must tell when one
// is complete: a hook on each weight reduces its gradient, as minimal.cpp does in its own backward.

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using enum zero::memory::Category;

constexpr int kInputs = 12, kOutputs = 11, kLayers = 4, kBatch = 16, kSteps = 5;
// Rows and columns of each layer's weight: one row for each input, then the bias.
constexpr std::int64_t kShapes[][2] = {{kInputs + 1, 35}, {36, 30}, {31, 31}, {32, kOutputs}};

// Tells the allocator, which counts bytes by category, what a tensor is for.
at::Tensor counted(at::Tensor tensor, zero::memory::Category category) {
  zero::memory::recharge(tensor, category);
  return tensor;
}

// Adds one more input to every sample, which is always 1: the bias is multiplied by it.
at::Tensor with_ones(const at::Tensor& x) { return at::cat({x, at::ones({x.size(0), 1})}, 1); }

// Another tensor with the same bytes, outside autograd: a write to it is no operation of the
// model.
at::Tensor raw(const at::Tensor& tensor) { return tensor.variable_data(); }

// Autograd calls it when a parameter's gradient is complete.
struct GradientHook : torch::autograd::PostAccumulateGradHook {
  explicit GradientHook(std::function<void()> action) : action(std::move(action)) {}
  void operator()(const at::Tensor& /*parameter*/) override { action(); }
  std::function<void()> action;
};

// tanh with the backward of minimal.cpp. LibTorch's own computes the same and rounds once less.
struct Tanh : torch::autograd::Function<Tanh> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = x.tanh();
    context->save_for_backward({y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * (1 - context->get_saved_variables()[0].square())};
  }
};

// AdamW with the moments `mean` and `square`. Each operation gives the nearest float (a square root
// only by way of a double), so an element gets the same bits wherever a tensor is cut.
void adamw(at::Tensor weight, at::Tensor gradient, at::Tensor mean, at::Tensor square, int step) {
  constexpr double kLearningRate = 0.01, kDecay = 0.01, kBeta1 = 0.9, kBeta2 = 0.999;
  mean.mul_(kBeta1).add_(gradient * (1 - kBeta1));
  square.mul_(kBeta2).add_(gradient.square() * (1 - kBeta2));
  const at::Tensor root = (square / (1 - std::pow(kBeta2, step))).to(at::kDouble).sqrt();
  const at::Tensor direction = mean / (1 - std::pow(kBeta1, step)) / (root.to(at::kFloat) + 1e-8);
  weight.mul_(1 - kLearningRate * kDecay).sub_(direction * kLearningRate);
}

// What each rank runs. Returns its rows of the table that main() prints.
std::string train(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  const auto owner = [&](int layer) { return layer % size; };
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), means(kLayers), squares(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    weights[layer] = counted(at::randn(kShapes[layer]).mul_(0.2), kParameters);
    weights[layer].set_requires_grad(true);
    const auto reduce = [&, layer] {
      counted(weights[layer].grad(), kGradients);
      communicator.reduce(weights[layer].grad(), owner(layer), Purpose::kGradient).wait();
      // Only the owner will use it.
      if (owner(layer) != rank) weights[layer].mutable_grad().reset();
    };
    torch::autograd::impl::set_post_acc_grad_hooks(weights[layer],
                                                   std::make_unique<GradientHook>(reduce));
    if (owner(layer) != rank) continue;
    means[layer] = counted(at::zeros(kShapes[layer]), kOptimizer);
    squares[layer] = counted(at::zeros(kShapes[layer]), kOptimizer);
  }
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto sent_before = communicator.traffic().bytes();
    at::manual_seed(1000 * step + rank);  // another batch on every rank
    at::Tensor x = at::randn({kBatch, kInputs});
    const at::Tensor targets = x.narrow(1, 0, kOutputs).sin();
    for (int layer = 0; layer < kLayers; ++layer) {
      x = Tanh::apply(with_ones(x).mm(weights[layer]));
    }
    const at::Tensor loss = (x - targets).square().mean();
    loss.backward();  // calls the hooks, from the last layer to the first
    for (int layer = 0; layer < kLayers; ++layer) {
      const at::Tensor weight = raw(weights[layer]);
      if (owner(layer) == rank) {
        adamw(weight, weights[layer].grad(), means[layer], squares[layer], step);
      }
      communicator.broadcast(weight, owner(layer), Purpose::kParameter).wait();
    }
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:7}\n", rank, step,
                        loss.item<double>(), held[kParameters], held[kGradients], held[kOptimizer],
                        held.states_peak, communicator.traffic().bytes() - sent_before);
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
  std::size_t digest = 0;  // the same as that of minimal.cpp
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto* const bits = static_cast<const char*>(weights[layer].const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weights[layer].nbytes()});
  }
  return rows + fmt::format("{:4} digest of the weights {:016x}\n", rank, digest);
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();  // the allocator that counts, before there is a tensor
  zero::dist::LaunchOptions options;
  if (argc > 1 && std::atoi(argv[1]) > 0) options.world_size = std::atoi(argv[1]);  // else 2
  const auto exits = zero::dist::launch_ranks(options, train);
  zero::dist::check_all_well(exits);
  fmt::print("rank  step      loss  parameters  gradients  optimizer    peak    sent (bytes)\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
