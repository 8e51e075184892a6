// finetune.cpp: finetune FROM TO TEXT STEPS [RANKS] goes on training the weights of the folder FROM
// (safetensors) on the bytes of a text, and writes them to the folder TO
#include <torch/nn.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/engine.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/nn/defer.hpp>
#include <zero/optim/adamw.hpp>

namespace nn = torch::nn;

constexpr std::int64_t kBytes = 256, kLength = 8, kWidth = 32, kBatch = 64;

struct BlockImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

// A module of torch::nn: it says which byte follows kLength others.
struct Net : nn::Module {
  Net() {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& bytes) {
    at::Tensor x = join(embedding(bytes).flatten(1));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  nn::Embedding embedding = register_module("embedding", nn::Embedding(kBytes, kWidth));
  nn::Linear join = register_module("join", nn::Linear(kLength* kWidth, kWidth));
  nn::ModuleList blocks;
  nn::Linear head = register_module("head", nn::Linear(kWidth, kBytes));
};

// Random pieces of the text, [kBatch, kLength + 1]; other ones on every rank.
at::Tensor pieces(const std::string& text, int rank, int step) {
  at::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  const auto last = static_cast<std::int64_t>(text.size()) - kLength;
  const at::Tensor begins = at::randint(last, {kBatch, 1}, at::kLong);
  const at::Tensor bytes = at::from_blob(const_cast<char*>(text.data()),
                                         {static_cast<std::int64_t>(text.size())}, at::kByte);
  return bytes.to(at::kLong).index({begins + at::arange(kLength + 1)});
}

void train(const std::string& from, const std::string& to, const std::string& text, int steps,
           zero::dist::Communicator& communicator) {
  const int rank = communicator.rank();
  // Shapes only: no rank ever holds the model. Rank 0 reads the files, one parameter at a time.
  const auto net = zero::nn::defer([] { return std::make_shared<Net>(); });
  std::unique_ptr<zero::io::StoredValues> values;
  if (rank == 0) {
    values = std::make_unique<zero::io::StoredValues>(from, zero::nn::list_parameters(*net));
    std::cout << values->describe() << std::endl;
  }
  zero::Engine engine(*net, communicator, zero::optim::adamw({.learning_rate = 1e-3}),
                      {.stage = 3, .clip_norm = 1}, zero::nn::default_units(), values.get());
  for (int step = 1; step <= steps; ++step) {
    const at::Tensor batch = pieces(text, rank, step);
    const at::Tensor loss = engine.forward([&] {
      return at::cross_entropy_loss(net->forward(batch.narrow(1, 0, kLength)),
                                    batch.select(1, kLength));
    });
    engine.backward(loss);
    engine.step();
    if (rank == 0) std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
  }
  zero::io::save_model(engine.strategy(), {{"model_type", "finetune"}}, to);
}

int main(int argc, char** argv) try {
  if (argc < 5) return std::cerr << "finetune FROM TO TEXT STEPS [RANKS]\n", 1;
  std::ifstream file(argv[3], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() <= kLength) return std::cerr << argv[3] << " has no text\n", 1;
  const int ranks = argc > 5 ? std::stoi(argv[5]) : 2;
  zero::dist::check_all_well(zero::dist::launch_ranks({.world_size = ranks}, [&](auto& c) {
    return train(argv[1], argv[2], text, std::stoi(argv[4]), c), std::string();
  }));
} catch (const std::exception& error) {
  return std::cerr << zero::message_of(error) << "\n", 1;
}
