// A pipeline: each rank holds some of the layers, a stage. Micro-batches pass through all stages.
// The schedule says in which order a stage runs their forwards and backwards.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using enum zero::memory::Category;

constexpr int kInputs = 12, kOutputs = 11, kLayers = 4, kMicroBatches = 6, kBatch = 16, kSteps = 5;
// Rows and columns of each layer's weight: one row for each input, then the bias.
constexpr std::int64_t kShapes[][2] = {{kInputs + 1, 35}, {36, 30}, {31, 31}, {32, kOutputs}};

// Tells the allocator, which counts bytes by category, what a tensor is for.
at::Tensor counted(at::Tensor tensor, zero::memory::Category category) {
  zero::memory::recharge(tensor, category);
  return tensor;
}

// Adds one more input to every sample, which is always 1: the bias is multiplied by it.
at::Tensor with_ones(const at::Tensor& x) { return at::cat({x, at::ones({x.size(0), 1})}, 1); }

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

// What a stage does in a step, in order: forward 'F' or backward 'B', and the micro-batch.
using Actions = std::vector<std::pair<char, int>>;

// GPipe: all forwards, then all backwards.
Actions gpipe() {
  Actions actions;
  for (int m = 0; m < kMicroBatches; ++m) actions.emplace_back('F', m);
  for (int m = 0; m < kMicroBatches; ++m) actions.emplace_back('B', m);
  return actions;
}

// 1F1B: a forward for each stage behind this one, then one forward and one backward in turn.
Actions one_forward_one_backward(int stage, int stages) {
  const int ahead = stages - 1 - stage;
  Actions actions;
  for (int m = 0; m < kMicroBatches + ahead; ++m) {
    if (m < kMicroBatches) actions.emplace_back('F', m);
    if (m >= ahead) actions.emplace_back('B', m - ahead);
  }
  return actions;
}

// What each rank runs. Returns its rows of the table that main() prints.
std::string train(Communicator& communicator, bool is_gpipe) {
  const int stage = communicator.rank(), stages = communicator.size();
  const bool is_first = stage == 0, is_last = stage == stages - 1;
  const int first = stage * kLayers / stages, end = (stage + 1) * kLayers / stages;  // its layers
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), means(kLayers), squares(kLayers);
  for (int layer = first; layer < end; ++layer) {
    at::manual_seed(layer);  // the weights of chapter 00
    weights[layer] = counted(at::randn(kShapes[layer]).mul_(0.2), kParameters);
    means[layer] = counted(at::zeros_like(weights[layer]), kOptimizer);
    squares[layer] = counted(at::zeros_like(weights[layer]), kOptimizer);
  }
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto sent_before = communicator.traffic().bytes();
    std::vector<at::Tensor> gradients(kLayers);
    std::vector<std::vector<at::Tensor>> activations(kMicroBatches);
    std::vector<zero::dist::Work> sent(kMicroBatches);  // the last message about a micro-batch
    int in_flight = 0, most_in_flight = 0;
    double loss = 0;
    const auto inputs_of = [&](int m) {
      at::manual_seed(1000 * step + m);  // the batch of rank m in chapter 00
      return at::randn({kBatch, kInputs});
    };
    for (const auto& [pass, m] : is_gpipe ? gpipe() : one_forward_one_backward(stage, stages)) {
      std::vector<at::Tensor>& kept = activations.at(m);  // for backward
      if (pass == 'F') {
        kept = {is_first ? inputs_of(m) : at::empty({kBatch, kShapes[first][0] - 1})};
        if (!is_first) communicator.recv(kept[0], stage - 1, Purpose::kActivation).wait();
        for (int layer = first; layer < end; ++layer) {
          kept.push_back(with_ones(kept.back()).mm(weights[layer]).tanh());
        }
        for (const at::Tensor& tensor : kept) counted(tensor, kActivations);
        most_in_flight = std::max(most_in_flight, ++in_flight);
        // No wait: under 1F1B the next stage may send to this one before it receives.
        if (!is_last) sent[m] = communicator.send(kept.back(), stage + 1, Purpose::kActivation);
        continue;
      }
      at::Tensor delta = at::empty_like(kept.back());  // the gradient of a layer's outputs
      if (is_last) {
        const at::Tensor error = kept.back() - inputs_of(m).narrow(1, 0, kOutputs).sin();
        loss += error.square().mean().item<double>() / kMicroBatches;
        delta = error * (2.0 / error.numel());
      } else {
        communicator.recv(delta, stage + 1, Purpose::kActivation).wait();
        sent[m].wait();  // the activations: this gradient is the answer
      }
      for (int layer = end - 1; layer >= first; --layer) {
        delta = delta * (1 - kept.back().square());  // the slope of tanh
        kept.pop_back();
        const at::Tensor gradient = counted(with_ones(kept.back()).t().mm(delta), kGradients);
        gradients[layer] = m == 0 ? gradient : gradients[layer].add_(gradient);
        delta = delta.mm(weights[layer].slice(0, 0, -1).t());  // all rows but the bias
      }
      kept.clear();
      --in_flight;
      if (m > 0) sent[m - 1].wait();  // at most one gradient is on its way
      if (!is_first) sent[m] = communicator.send(delta, stage - 1, Purpose::kActivation);
    }
    for (zero::dist::Work& work : sent) work.wait();
    for (int layer = first; layer < end; ++layer) {
      adamw(weights[layer], gradients[layer] / kMicroBatches, means[layer], squares[layer], step);
    }
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:>9} {:11} {:10} {:10} {:7} {:7} {:10} {:12}\n", stage, step,
                        is_last ? fmt::format("{:.6f}", loss) : "-", held[kParameters],
                        held[kGradients], held[kOptimizer], held.states_peak,
                        communicator.traffic().bytes() - sent_before, most_in_flight,
                        held.peak_of(kActivations));
  }
  std::size_t digest = 0;  // of all stages: that of chapter 00 on kMicroBatches ranks
  for (int layer = 0; layer < kLayers; ++layer) {
    at::Tensor weight = weights[layer].defined() ? weights[layer] : at::zeros(kShapes[layer]);
    communicator.all_reduce(weight, Purpose::kParameter, zero::dist::ReduceOp::kSum).wait();
    const auto* const bits = static_cast<const char*>(weight.const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weight.nbytes()});
  }
  return rows + fmt::format("{:4} digest of the weights {:016x}\n", stage, digest);
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();  // the allocator that counts, before there is a tensor
  zero::dist::LaunchOptions options;
  options.world_size = argc > 1 && std::atoi(argv[1]) > 0 ? std::atoi(argv[1]) : 4;
  const bool is_gpipe = argc > 2 && argv[2] == std::string("gpipe");
  const auto exits = zero::dist::launch_ranks(options, [&](auto& c) { return train(c, is_gpipe); });
  zero::dist::check_all_well(exits);
  fmt::print("rank  step      loss  parameters  gradients  optimizer    peak    sent");
  fmt::print("  in flight  activations (bytes)\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
