// ZeRO-3 with a secondary shard and quantized gradients (hpZ and qgZ of ZeRO++). Gradients travel
// in 4 bits, first between the ranks of a host, then between hosts. Ranks add up in float32.

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
constexpr std::int64_t kBlock = 32;  // elements of a gradient that share a scale

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

// A hop: sends piece p of `values` to rank p in 4 bits, and adds up what arrives. The largest value
// of a block becomes 7 or -7.
at::Tensor sum_of_pieces(Communicator& ranks, const at::Tensor& values) {
  const at::Tensor blocks = values.view({-1, kBlock});
  const at::Tensor largest = blocks.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scales = counted((largest / 7).clamp_min(FLT_MIN), kGradients);
  // Two numbers share a byte. 8 is added to each, so that none is negative.
  const at::Tensor numbers = ((blocks / scales).round() + 8).to(at::kByte).view({-1, 2});
  const at::Tensor bytes = counted(numbers.select(1, 0) + numbers.select(1, 1) * 16, kGradients);
  const at::Tensor all_bytes = counted(at::empty_like(bytes), kGradients);
  const at::Tensor all_scales = counted(at::empty_like(scales), kGradients);
  ranks.all_to_all(all_bytes, bytes, Purpose::kGradient).wait();
  ranks.all_to_all(all_scales, scales, Purpose::kGradient).wait();
  // What has arrived, as floats: a piece from each rank.
  const at::Tensor pairs = at::stack({all_bytes % 16, all_bytes.bitwise_right_shift(4)}, 1);
  const at::Tensor pieces = counted((pairs.view({-1, kBlock}) - 8.0F) * all_scales, kGradients);
  return counted(pieces.view({ranks.size(), -1}).sum(0), kGradients);
}

// What each rank runs. Returns its rows of the table that main() prints.
std::string train(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  // Two neighbours are a host, so that on one machine too there are links between hosts.
  const int near = size % 2 == 0 ? 2 : 1, place = rank % near;
  std::vector<int> hosts, neighbours, across;
  for (int other = 0; other < size; ++other) {
    hosts.push_back(other / near);
    if (other / near == rank / near) neighbours.push_back(other);
    if (other % near == place) across.push_back(other);
  }
  communicator.set_hosts(hosts);  // for the count of bytes that leave a host
  const auto host = communicator.split(neighbours, fmt::format("host {}", rank / near));
  const auto others = communicator.split(across, fmt::format("place {}", place));
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), shards(kLayers), means(kLayers), squares(kLayers);
  std::vector<at::Tensor> secondary(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    const at::Tensor whole = padded(at::randn(kShapes[layer]).mul_(0.2), size);
    shards[layer] = counted(whole.chunk(size)[rank].clone(), kParameters);
    secondary[layer] = counted(at::empty_like(whole.chunk(near)[place]), kParameters);
    means[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
    squares[layer] = counted(at::zeros_like(shards[layer]), kOptimizer);
  }
  // Before a layer computes, `ranks` send their shards of its weight; afterwards they drop it.
  const auto gather = [&](Communicator& ranks, const at::Tensor& shard, int layer) {
    const at::Tensor whole = counted(at::empty({ranks.size() * shard.numel()}), kParameters);
    ranks.all_gather(whole, shard, Purpose::kParameter).wait();
    // The weight is a view of what arrives, without the zeros at its end.
    weights[layer] = whole.narrow(0, 0, kShapes[layer][0] * kShapes[layer][1]).view(kShapes[layer]);
    return whole;
  };
  const auto reshard = [&](int layer) { weights[layer].reset(); };
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto sent_before = communicator.traffic();
    at::manual_seed(1000 * step + rank);  // another batch on every rank
    std::vector<at::Tensor> activations = {at::randn({kBatch, kInputs})}, gradients(kLayers);
    const at::Tensor targets = activations[0].narrow(1, 0, kOutputs).sin();
    // Forward: each layer makes activations[layer + 1] of activations[layer].
    for (int layer = 0; layer < kLayers; ++layer) {
      const at::Tensor whole = gather(communicator, shards[layer], layer);
      secondary[layer].copy_(whole.chunk(near)[place]);  // in each step: the weight is a new one
      activations.push_back(with_ones(activations[layer]).mm(weights[layer]).tanh());
      reshard(layer);
    }
    const at::Tensor error = activations[kLayers] - targets;
    // Backward: `delta` is the gradient of the mean squared error, layer by layer from the last.
    at::Tensor delta = error * (2.0 / error.numel());
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      gather(*host, secondary[layer], layer);                 // once more, from ranks of this host
      delta = delta * (1 - activations[layer + 1].square());  // the slope of tanh
      const at::Tensor gradient = counted(with_ones(activations[layer]).t().mm(delta), kGradients);
      delta = delta.mm(weights[layer].slice(0, 0, -1).t());  // all rows but the bias
      reshard(layer);
      // First to each place: the shards of that place on all hosts. Then to each host: its own.
      const at::Tensor by_host = padded(gradient, size).view({size / near, near, -1});
      const at::Tensor by_place = counted(by_host.transpose(0, 1).contiguous(), kGradients);
      const at::Tensor of_host = sum_of_pieces(*host, by_place);
      gradients[layer] = sum_of_pieces(*others, of_host).div_(size);
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      adamw(shards[layer], gradients[layer], means[layer], squares[layer], step);
    }
    const auto held = zero::memory::snapshot();
    const auto sent = communicator.traffic().since(sent_before);
    rows += fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:7} {:8}\n", rank, step,
                        error.square().mean().item<double>(), held[kParameters], held[kGradients],
                        held[kOptimizer], held.states_peak, sent.bytes() - sent.between_hosts(),
                        sent.between_hosts());
  }
  std::size_t digest = 0;  // the same on all ranks, but not chapter 00's: gradients were rounded
  for (int layer = 0; layer < kLayers; ++layer) {
    gather(communicator, shards[layer], layer);
    const auto* const bits = static_cast<const char*>(weights[layer].const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weights[layer].nbytes()});
    reshard(layer);
  }
  return rows + fmt::format("{:4} digest of the weights {:016x}\n", rank, digest);
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
