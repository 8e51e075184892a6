// ZeRO-3 with quantized gathers (qwZ of ZeRO++): weights travel in 8 bits, and every rank computes
// with what these stand for. The shards, which are updated, stay exact.

#include <fmt/format.h>

#include <cfloat>
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

constexpr int kInputs = 12, kOutputs = 11, kLayers = 4, kBatch = 16, kSteps = 5;
// Rows and columns of each layer's weight: one row for each input, then the bias.
constexpr std::int64_t kShapes[][2] = {{kInputs + 1, 35}, {36, 30}, {31, 31}, {32, kOutputs}};
constexpr std::int64_t kBlock = 32;  // elements that share a scale

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

// Flattens a tensor and adds zeros until it can be cut into `size` equal shards of whole blocks.
at::Tensor padded(const at::Tensor& tensor, int size) {
  const auto blocks = (tensor.numel() + size * kBlock - 1) / (size * kBlock);  // of a shard
  return at::constant_pad_nd(tensor.flatten(), {0, size * blocks * kBlock - tensor.numel()});
}

// A shard in 8 bits: whole numbers from -127 to 127, a row for each block, and each block's scale.
struct Quantized {
  at::Tensor numbers, scales;
};

// The largest value of a block becomes 127 or -127. A block of zeros needs a scale other than 0.
Quantized quantized(const at::Tensor& shard) {
  const at::Tensor blocks = shard.view({-1, kBlock});
  const at::Tensor largest = blocks.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scales = counted((largest / 127).clamp_min(FLT_MIN), kParameters);
  return {counted((blocks / scales).round().to(at::kChar), kParameters), scales};
}

// What each rank runs. Returns its rows of the table that main() prints.
std::string train(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), shards(kLayers), means(kLayers), squares(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    const at::Tensor whole = padded(at::randn(kShapes[layer]).mul_(0.2), size);
    shards[layer] = counted(whole.chunk(size)[rank].clone(), kParameters);
    means[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
    squares[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
  }
  // Sends rows of this rank to all. Returns those of all ranks.
  const auto all_gather = [&](const at::Tensor& mine) {
    const at::Tensor all = at::empty({size * mine.size(0), mine.size(1)}, mine.options());
    communicator.all_gather(counted(all, kParameters), mine, Purpose::kParameter).wait();
    return all;
  };
  // The weight is a view of what arrives, without the zeros at its end.
  const auto weight_in = [&](const at::Tensor& all, int layer) {
    const auto elements = kShapes[layer][0] * kShapes[layer][1];
    return all.flatten().narrow(0, 0, elements).view(kShapes[layer]);
  };
  // Before a layer computes, all ranks send their shards of its weight; afterwards they drop it.
  const auto gather = [&](int layer) {
    const Quantized mine = quantized(shards[layer]);
    const at::Tensor numbers = all_gather(mine.numbers), scales = all_gather(mine.scales);
    // This rank's own shard too is what its 8 bits stand for, as on the other ranks.
    weights[layer] = weight_in(counted(numbers * scales, kParameters), layer);
  };
  const auto reshard = [&](int layer) { weights[layer].reset(); };
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto sent_before = communicator.traffic().bytes();
    at::manual_seed(1000 * step + rank);  // another batch on every rank
    std::vector<at::Tensor> activations = {at::randn({kBatch, kInputs})}, gradients(kLayers);
    const at::Tensor targets = activations[0].narrow(1, 0, kOutputs).sin();
    // Forward: each layer makes activations[layer + 1] of activations[layer].
    for (int layer = 0; layer < kLayers; ++layer) {
      gather(layer);
      activations.push_back(with_ones(activations[layer]).mm(weights[layer]).tanh());
      reshard(layer);
    }
    const at::Tensor error = activations[kLayers] - targets;
    // Backward: `delta` is the gradient of the mean squared error, layer by layer from the last.
    at::Tensor delta = error * (2.0 / error.numel());
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      gather(layer);  // once more: it was dropped after forward
      delta = delta * (1 - activations[layer + 1].square());  // the slope of tanh
      const at::Tensor gradient = counted(with_ones(activations[layer]).t().mm(delta), kGradients);
      delta = delta.mm(weights[layer].slice(0, 0, -1).t());  // all rows but the bias
      reshard(layer);
      const at::Tensor whole = counted(padded(gradient, size), kGradients);
      gradients[layer] = counted(at::empty_like(shards[layer]), kGradients);
      communicator.reduce_scatter(gradients[layer], whole, Purpose::kGradient).wait();
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      adamw(shards[layer], gradients[layer], means[layer], squares[layer], step);
    }
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:7}\n", rank, step,
                        error.square().mean().item<double>(), held[kParameters], held[kGradients],
                        held[kOptimizer], held.states_peak,
                        communicator.traffic().bytes() - sent_before);
  }
  std::size_t digest = 0;  // of the exact weights, the same on all ranks
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor weight = weight_in(all_gather(shards[layer].view({-1, kBlock})), layer);
    const auto* const bits = static_cast<const char*>(weight.const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weight.nbytes()});
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
