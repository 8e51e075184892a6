// ZeRO-3 with moments in a file: those of a layer are read before its update, written after it.

#include <c10/core/thread_pool.h>
#include <fmt/format.h>
#include <unistd.h>

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
std::string train(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  std::string rows;
  std::vector<at::Tensor> weights(kLayers), shards(kLayers);
  std::vector<std::int64_t> places = {0};  // where each layer's moments begin in the file, in bytes
  std::int64_t largest = 0, moved = 0;     // elements of a shard; disk bytes in a step
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    const at::Tensor whole = padded(at::randn(kShapes[layer]).mul_(0.2), size);
    shards[layer] = counted(whole.chunk(size)[rank].clone(), kParameters);
    places.push_back(places[layer] + 2 * 4 * shards[layer].numel());
    largest = std::max(largest, shards[layer].numel());
  }
  std::FILE* const file = std::tmpfile();  // has no name, so nothing is left behind
  TORCH_CHECK(file && ftruncate(fileno(file), places[kLayers]) == 0, "no file");  // of zeros
  // Even layers use the first buffer, odd ones the second: two rows, means and squares.
  const at::Tensor buffers = counted(at::empty({2, 2 * largest}), kOptimizer);
  const auto moments = [&](int layer) {
    return buffers[layer % 2].narrow(0, 0, 2 * shards[layer].numel()).view({2, -1});
  };
  c10::ThreadPool disk(1);  // one thread: it does what it is told in order, in the background
  const auto start = [&](auto call, int layer) {  // pread or pwrite
    disk.run([&, call, layer, tile = moments(layer)] {
      moved += call(fileno(file), tile.data_ptr(), tile.nbytes(), places[layer]);
    });
  };
  // Before a layer computes, all ranks send their shards of its weight; afterwards they drop it.
  std::vector<zero::dist::Work> gathers(kLayers), reductions(kLayers);  // in flight
  const auto start_gather = [&](int layer) {
    const at::Tensor whole = counted(at::empty({size * shards[layer].numel()}), kParameters);
    gathers[layer] = communicator.all_gather(whole, shards[layer], Purpose::kParameter);
    // The weight is a view of what arrives, without the zeros at its end.
    weights[layer] = whole.narrow(0, 0, kShapes[layer][0] * kShapes[layer][1]).view(kShapes[layer]);
  };
  const auto reshard = [&](int layer) { weights[layer].reset(); };
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    const auto sent_before = communicator.traffic().bytes();
    at::manual_seed(1000 * step + rank);  // another batch on every rank
    std::vector<at::Tensor> activations = {at::randn({kBatch, kInputs})}, gradients(kLayers);
    const at::Tensor targets = activations[0].narrow(1, 0, kOutputs).sin();
    moved = 0;
    // Forward: each layer makes activations[layer + 1] of activations[layer].
    start_gather(0);
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer + 1 < kLayers) start_gather(layer + 1);  // travels while this layer computes
      gathers[layer].wait();
      activations.push_back(with_ones(activations[layer]).mm(weights[layer]).tanh());
      reshard(layer);
    }
    const at::Tensor error = activations[kLayers] - targets;
    // Backward: `delta` is the gradient of the mean squared error, layer by layer from the last.
    at::Tensor delta = error * (2.0 / error.numel());
    start(pread, 0);            // while backward computes
    start_gather(kLayers - 1);  // once more: it was dropped after forward
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      if (layer > 0) start_gather(layer - 1);
      gathers[layer].wait();
      delta = delta * (1 - activations[layer + 1].square());  // the slope of tanh
      const at::Tensor gradient = counted(with_ones(activations[layer]).t().mm(delta), kGradients);
      delta = delta.mm(weights[layer].slice(0, 0, -1).t());  // all rows but the bias
      reshard(layer);
      const at::Tensor whole = counted(padded(gradient, size), kGradients);
      gradients[layer] = counted(at::empty_like(shards[layer]), kGradients);
      reductions[layer] = communicator.reduce_scatter(gradients[layer], whole, Purpose::kGradient);
    }
    disk.waitWorkComplete();
    for (int layer = 0; layer < kLayers; ++layer) {
      // After the write of layer - 1, which is on its way and has the same buffer.
      if (layer + 1 < kLayers) start(pread, layer + 1);
      reductions[layer].wait();  // frees the whole gradient as well
      adamw(shards[layer], gradients[layer], moments(layer)[0], moments(layer)[1], step);
      disk.waitWorkComplete();
      start(pwrite, layer);
    }
    disk.waitWorkComplete();
    TORCH_CHECK(moved == 2 * places[kLayers], "moved ", moved, " bytes of ", 2 * places[kLayers]);
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:9.6f} {:11} {:10} {:10} {:7} {:6} {:5} {:5}\n", rank, step,
                        error.square().mean().item<double>(), held[kParameters], held[kGradients],
                        held[kOptimizer], held.states_peak,
                        communicator.traffic().bytes() - sent_before, places[kLayers], moved);
  }
  std::size_t digest = 0;  // the same on all ranks, and in chapters 00 to 05
  for (int layer = 0; layer < kLayers; ++layer) {
    start_gather(layer);
    gathers[layer].wait();
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
  if (argc > 1 && std::atoi(argv[1]) > 0) options.world_size = std::atoi(argv[1]);  // else 2
  const auto exits = zero::dist::launch_ranks(options, train);
  zero::dist::check_all_well(exits);
  fmt::print("rank  step      loss  parameters  gradients  optimizer    peak   sent  file  disk\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
