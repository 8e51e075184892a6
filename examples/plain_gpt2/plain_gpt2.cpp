// plain_gpt2.cpp: plain_gpt2 TEXT STEPS trains a small GPT-2 of torch::nn on the bytes of a file
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <fstream>
#include <iostream>
#include <iterator>

#ifndef ALONE
#include <zero/distributed/launch.hpp>     // zero
#include <zero/engine.hpp>                 // zero
#include <zero/optim/torch_optimizer.hpp>  // zero
#endif

namespace nn = torch::nn;

constexpr std::int64_t kBytes = 256, kWidth = 64, kHeads = 4, kLength = 32, kBatch = 8;

struct BlockImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    const at::Tensor heads = qkv(norm1(x)).view({x.size(0), x.size(1), kHeads, -1});
    const auto parts = heads.transpose(1, 2).chunk(3, 3);
    const at::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return x + down(at::gelu(up(norm2(x))));
  }
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
  nn::Linear out = register_module("out", nn::Linear(kWidth, kWidth));
  nn::Linear up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct Gpt2 : nn::Module {
  Gpt2() {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + places(at::arange(ids.size(1)));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return at::linear(norm(x), tokens->weight);  // the head is the embedding
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(kBytes, kWidth));
  nn::Embedding places = register_module("places", nn::Embedding(kLength, kWidth));
  nn::ModuleList blocks;
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
};

// Random pieces of the text; other ones on every rank.
at::Tensor pieces(const std::string& text, int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  const auto last = static_cast<std::int64_t>(text.size()) - kLength;
  const at::Tensor begins = at::randint(last, {kBatch, 1}, at::kLong);
  const at::Tensor bytes = at::from_blob(const_cast<char*>(text.data()),
                                         {static_cast<std::int64_t>(text.size())}, at::kByte);
  return bytes.to(at::kLong).index({begins + at::arange(kLength + 1)});
}

#ifdef ALONE
void train(const std::string& text, int steps) {
  const int rank = 0;
#else
void train(const std::string& text, int steps, zero::dist::Communicator& communicator) {     // zero
  const int rank = communicator.rank();                                                      // zero
#endif
  at::manual_seed(1);  // the same first values on every rank
  Gpt2 net;
  const auto optimizer_of = [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(3e-3));
  };
#ifdef ALONE
  const auto optimizer = optimizer_of(net.parameters());
#else
  zero::Engine engine(                                                                       // zero
      net, communicator, [&](const auto& p) { return zero::optim::wrap(optimizer_of(p)); },  // zero
      {.stage = 3});                                                                         // zero
#endif
  for (int step = 1; step <= steps; ++step) {
    const at::Tensor batch = pieces(text, rank, step);
    const auto compute = [&] {
      const at::Tensor logits = net.forward(batch.narrow(1, 0, kLength));
      return at::cross_entropy_loss(logits.flatten(0, 1), batch.narrow(1, 1, kLength).flatten());
    };
#ifdef ALONE
    optimizer->zero_grad();
    const at::Tensor loss = compute();
    loss.backward();
    optimizer->step();
#else
    const at::Tensor loss = engine.forward(compute);                                         // zero
    engine.backward(loss);                                                                   // zero
    engine.step();                                                                           // zero
#endif
    if (rank == 0) std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
  }
}

int main(int argc, char** argv) try {
  if (argc < 3) return std::cerr << "plain_gpt2 TEXT STEPS [RANKS]\n", 1;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() <= kLength) return std::cerr << argv[1] << " has no text\n", 1;
#ifdef ALONE
  train(text, std::stoi(argv[2]));
#else
  const int ranks = argc > 3 ? std::stoi(argv[3]) : 2;                                       // zero
  zero::dist::check_all_well(zero::dist::launch_ranks({.world_size = ranks}, [&](auto& c) {  // zero
    return train(text, std::stoi(argv[2]), c), std::string();                                // zero
  }));                                                                                       // zero
#endif
} catch (const std::exception& error) {
  return std::cerr << "plain_gpt2: " << error.what() << "\n", 1;
}
