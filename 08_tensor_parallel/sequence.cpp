// Sequence parallelism on the mesh of minimal.cpp. Between two pairs of layers a rank of a tensor
// axis has 1/n of the activations: an all-gather leads into a pair, a reduce-scatter out of it.

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
using enum zero::memory::Category;

constexpr int kInputs = 12, kOutputs = 11, kLayers = 4, kBatch = 16, kSteps = 5;
// Rows and columns of each layer's weight: one row for each input, then the bias.
constexpr std::int64_t kShapes[][2] = {{kInputs + 1, 35}, {36, 30}, {31, 31}, {32, kOutputs}};

// Tells the allocator, which counts bytes by category, what a tensor is for.
at::Tensor counted(at::Tensor tensor, zero::memory::Category category) {
  zero::memory::recharge(tensor, category);
  return tensor;
}

// Adds `ones` more inputs to every sample, which are always 1: the bias is multiplied by them.
at::Tensor with_ones(const at::Tensor& x, int ones) {
  return at::cat({x, at::ones({x.size(0), ones})}, 1);
}

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
std::string train(Communicator& world) {
  // The mesh. Neighbours, which are on one host, share a tensor axis: nothing hides what it sends.
  const int parts = world.size() % 2 == 0 ? 2 : 1, part = world.rank() % parts;
  std::vector<int> same_batch, same_part;
  for (int other = 0; other < world.size(); ++other) {
    if (other / parts == world.rank() / parts) same_batch.push_back(other);
    if (other % parts == part) same_part.push_back(other);
  }
  const auto tensor = world.split(same_batch, fmt::format("tensor {}", same_batch[0]));
  const auto data = world.split(same_part, fmt::format("data {}", part));
  // Even layers are cut by columns, their outputs; odd ones by rows, their inputs. So a rank makes
  // what its part of an odd layer reads, and only two sums are sent for a pair of layers.
  const auto by_columns = [](int layer) { return layer % 2 == 0; };
  const auto part_of = [&](const at::Tensor& weight, int layer) {
    return weight.chunk(parts, by_columns(layer) ? 1 : 0)[part];
  };
  // Samples stand for the positions of a sequence: between pairs a rank has its 1/n of them.
  const auto gathered = [&](const at::Tensor& mine) {
    const at::Tensor all = at::empty({kBatch, mine.size(1)});
    tensor->all_gather(all, mine, Purpose::kActivation).wait();
    return all;
  };
  const auto scattered = [&](const at::Tensor& term) {
    const at::Tensor mine = at::empty({kBatch / parts, term.size(1)});
    tensor->reduce_scatter(mine, term, Purpose::kActivation, zero::dist::ReduceOp::kSum).wait();
    return mine;
  };
  // The bias is the last row: of rows, the last part has it.
  const auto ones = [&](int layer) { return by_columns(layer) || part == parts - 1 ? 1 : 0; };
  const int rank = data->rank(), size = data->size();
  const auto owner = [&](int layer) { return layer % size; };
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), means(kLayers), squares(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    if (owner(layer) != rank) continue;
    at::manual_seed(layer);  // the same weights on every rank
    const at::Tensor whole = at::randn(kShapes[layer]).mul_(0.2);
    weights[layer] = counted(part_of(whole, layer).clone(), kParameters);
    means[layer] = counted(at::zeros_like(weights[layer]), kOptimizer);
    squares[layer] = counted(at::zeros_like(weights[layer]), kOptimizer);
  }
  // Before a layer computes, its owner sends its part to all; afterwards the others drop it.
  const auto gather = [&](int layer) {
    const at::Tensor room = part_of(at::empty(kShapes[layer], at::kMeta), layer);  // sizes only
    if (owner(layer) != rank) weights[layer] = counted(at::empty(room.sizes()), kParameters);
    data->broadcast(weights[layer], owner(layer), Purpose::kParameter).wait();
  };
  const auto reshard = [&](int layer) {
    if (owner(layer) != rank) weights[layer].reset();
  };
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto data_before = data->traffic().bytes(), tensor_before = tensor->traffic().bytes();
    at::manual_seed(1000 * step + rank);  // another batch on every rank of the data axis
    std::vector<at::Tensor> activations = {at::randn({kBatch, kInputs})}, gradients(kLayers);
    counted(activations[0], kActivations);
    const at::Tensor targets = activations[0].chunk(parts)[part].narrow(1, 0, kOutputs).sin();
    // What a layer reads. Behind a pair it is gathered from all ranks, in backward once more.
    const auto inputs_of = [&](int layer) {
      const at::Tensor& x = activations[layer];
      const bool is_cut = by_columns(layer) && layer > 0;
      return with_ones(is_cut ? counted(gathered(x), kActivations) : x, ones(layer));
    };
    // Forward: each layer makes activations[layer + 1] of activations[layer].
    for (int layer = 0; layer < kLayers; ++layer) {
      gather(layer);
      at::Tensor output = inputs_of(layer).mm(weights[layer]);
      if (!by_columns(layer)) output = scattered(output);
      activations.push_back(counted(output.tanh(), kActivations));
      reshard(layer);
    }
    const auto kept = zero::memory::snapshot()[kActivations];  // for backward
    const at::Tensor error = activations[kLayers] - targets;
    // Backward: `delta` is the gradient of the mean squared error, layer by layer from the last.
    at::Tensor delta = error * (2.0 / (kBatch * kOutputs));
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      gather(layer);  // once more: it was dropped after forward
      delta = delta * (1 - activations[layer + 1].square());  // the slope of tanh
      activations.pop_back();                                 // its last use was the slope above
      if (!by_columns(layer)) delta = gathered(delta);
      gradients[layer] = counted(inputs_of(layer).t().mm(delta), kGradients);
      delta = delta.mm(weights[layer].narrow(0, 0, activations[layer].size(1)).t());  // no bias
      if (by_columns(layer) && layer > 0) delta = scattered(delta);
      reshard(layer);
      data->reduce(gradients[layer], owner(layer), Purpose::kGradient).wait();
      if (owner(layer) != rank) gradients[layer].reset();  // only the owner will use it
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      if (owner(layer) != rank) continue;  // the next gather brings the new weight
      adamw(weights[layer], gradients[layer], means[layer], squares[layer], step);
    }
    const auto held = zero::memory::snapshot();
    rows +=
        fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:7} {:7} {:6} {:12}\n", world.rank(),
                    step, error.square().mean().item<double>(), held[kParameters], held[kGradients],
                    held[kOptimizer], held.states_peak, data->traffic().bytes() - data_before,
                    tensor->traffic().bytes() - tensor_before, kept, held.peak_of(kActivations));
  }
  std::size_t digest = 0;  // the same on all ranks, and in minimal.cpp
  for (int layer = 0; layer < kLayers; ++layer) {
    gather(layer);
    const at::Tensor whole = at::zeros(kShapes[layer]);
    part_of(whole, layer).copy_(weights[layer]);  // a part and zeros
    tensor->all_reduce(whole, Purpose::kParameter, zero::dist::ReduceOp::kSum).wait();
    const auto* const bits = static_cast<const char*>(whole.const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, whole.nbytes()});
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
  fmt::print("rank  step      loss  parameters  gradients  optimizer    peak    data  tensor");
  fmt::print("   kept  activations (at the peak)\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
