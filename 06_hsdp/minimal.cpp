// HSDP, hybrid sharding: groups of two neighbours share the model states as in chapter 04, and the
// groups hold copies of each other. Between groups a rank sends only its shard of each gradient.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;
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

// Flattens a tensor and adds zeros until it can be cut into `size` equal shards.
at::Tensor padded(const at::Tensor& tensor, int size) {
  const auto shard = (tensor.numel() + size - 1) / size;
  return at::constant_pad_nd(tensor.flatten(), {0, size * shard - tensor.numel()});
}

// What each rank runs. Returns its rows of the table that main() prints.
std::string train(Communicator& world) {
  // The mesh. Neighbours, which are on one host, share the states. Ranks at the same place in
  // their groups hold the same shards.
  const int size = world.size() % 2 == 0 ? 2 : 1, rank = world.rank() % size;
  std::vector<int> neighbours, replicas;
  for (int other = 0; other < world.size(); ++other) {
    if (other / size == world.rank() / size) neighbours.push_back(other);
    if (other % size == rank) replicas.push_back(other);
  }
  const auto shard_group = world.split(neighbours, fmt::format("shard {}", neighbours[0]));
  const auto replica_group = world.split(replicas, fmt::format("replica {}", rank));
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), shards(kLayers), means(kLayers), squares(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    const at::Tensor whole = padded(at::randn(kShapes[layer]).mul_(0.2), size);
    shards[layer] = counted(whole.chunk(size)[rank].clone(), kParameters);
    means[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
    squares[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
  }
  // Before a layer computes, the group's ranks send their shards of it; afterwards they drop it.
  const auto gather = [&](int layer) {
    const at::Tensor whole = counted(at::empty({size * shards[layer].numel()}), kParameters);
    shard_group->all_gather(whole, shards[layer], Purpose::kParameter).wait();
    // The weight is a view of what arrives, without the zeros at its end.
    weights[layer] = whole.narrow(0, 0, kShapes[layer][0] * kShapes[layer][1]).view(kShapes[layer]);
  };
  const auto reshard = [&](int layer) { weights[layer].reset(); };
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto inside_before = shard_group->traffic().bytes();
    const auto between_before = replica_group->traffic().bytes();
    at::manual_seed(1000 * step + world.rank());  // another batch on every rank
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
      // Sums inside the groups, then of these sums, divided once: the average over all ranks.
      const at::Tensor& mine = gradients[layer];
      shard_group->reduce_scatter(mine, whole, Purpose::kGradient, ReduceOp::kSum).wait();
      replica_group->all_reduce(mine, Purpose::kGradient, ReduceOp::kSum).wait();
      mine.div_(world.size());
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      adamw(shards[layer], gradients[layer], means[layer], squares[layer], step);
    }
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:7} {:8}\n", world.rank(), step,
                        error.square().mean().item<double>(), held[kParameters], held[kGradients],
                        held[kOptimizer], held.states_peak,
                        shard_group->traffic().bytes() - inside_before,
                        replica_group->traffic().bytes() - between_before);
  }
  std::size_t digest = 0;  // the same on all ranks
  for (int layer = 0; layer < kLayers; ++layer) {
    gather(layer);
    const auto* const bits = static_cast<const char*>(weights[layer].const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weights[layer].nbytes()});
    reshard(layer);
  }
  return rows + fmt::format("{:4} digest of the weights {:016x}\n", world.rank(), digest);
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();  // the allocator that counts, before there is a tensor
  zero::dist::LaunchOptions options;
  options.world_size = argc > 1 && std::atoi(argv[1]) > 0 ? std::atoi(argv[1]) : 4;
  const auto exits = zero::dist::launch_ranks(options, train);
  zero::dist::check_all_well(exits);
  fmt::print("rank  step      loss  parameters  gradients  optimizer    peak  inside  between\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
