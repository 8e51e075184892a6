// DeepSpeed-Ulysses beside ZeRO-3. A rank has some positions of the sequence, with all features.
// Only inside attention it has all positions of some heads. One all-to-all leads in, another one
// out. To ZeRO these ranks are data-parallel: each uses whole weights, on positions of its own.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/launch.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;
using Map = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kTokens = 16, kHidden = 32, kHeads = 8;
constexpr int kPositionAxis = -3, kHeadAxis = -2;  // of [..., positions, heads, elements of a head]

at::Tensor random(at::IntArrayRef sizes, int seed) {
  at::manual_seed(seed);  // the same on every rank
  return at::randn(sizes);
}

// Cuts `x` along one axis, a piece for each rank, and joins the pieces that arrive along another.
at::Tensor exchange(Communicator& ranks, const at::Tensor& x, int cut, int join) {
  const at::Tensor sent = at::stack(x.chunk(ranks.size(), cut));
  const at::Tensor received = at::empty_like(sent);
  ranks.all_to_all(received, sent, Purpose::kActivation).wait();
  return at::cat(received.unbind(), join);
}

// From q, k and v, [3, positions, heads, elements], to [positions, heads, elements]. Each head is
// computed by itself, so its bits do not depend on the heads beside it.
at::Tensor attend(const at::Tensor& qkv) {
  const at::Tensor later = at::full({kTokens, kTokens}, -std::numeric_limits<float>::infinity());
  std::vector<at::Tensor> results;
  for (const at::Tensor& head : qkv.unbind(kHeadAxis)) {
    const std::vector<at::Tensor> of_head = head.contiguous().unbind();
    const at::Tensor scores = of_head[0].mm(of_head[1].t()) / std::sqrt(kHidden / kHeads);
    results.push_back((scores + later.triu(1)).softmax(-1).mm(of_head[2]));
  }
  return at::stack(results, 1);
}

struct Result {
  at::Tensor output, gradient;  // [positions, hidden]; of the weights
};

// Forward, and backward of the sum of squares / 2. `w` are q, k, v and out, [hidden, hidden]. `x`
// are pieces of the sequence: this rank's one, or all of them, and then the two maps do nothing.
Result step(const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& w, const Map& to_heads,
            const Map& to_positions) {
  const int pieces = static_cast<int>(x.size());
  std::vector<at::Tensor> qkv, outputs, deltas;
  for (const at::Tensor& piece : x) {
    const at::Tensor projected = at::stack({piece.mm(w[0]), piece.mm(w[1]), piece.mm(w[2])});
    qkv.push_back(projected.unflatten(2, {kHeads, -1}));
  }
  const at::Tensor in = to_heads(at::cat(qkv, kPositionAxis)).requires_grad_();
  const at::Tensor out = attend(in);
  const std::vector<at::Tensor> attended = to_positions(out.detach()).flatten(1).chunk(pieces);
  for (const at::Tensor& piece : attended) {
    outputs.push_back(piece.mm(w[3]));
    deltas.push_back(outputs.back().mm(w[3].t()));  // of the loss, an output is its own gradient
  }
  out.backward(to_heads(at::cat(deltas).unflatten(1, {kHeads, -1})));
  const std::vector<at::Tensor> d = to_positions(in.grad()).flatten(2).chunk(pieces, 1);
  const at::Tensor gradient = at::zeros({4, kHidden, kHidden});
  for (std::size_t p = 0; p < x.size(); ++p) {  // in the order of ranks
    const at::Tensor inputs = x[p].t();
    gradient.add_(at::stack({inputs.mm(d[p][0]), inputs.mm(d[p][1]), inputs.mm(d[p][2]),
                             attended[p].t().mm(outputs[p])}));
  }
  return {at::cat(outputs), gradient};
}

std::string run(Communicator& ranks) {
  const int n = ranks.size(), rank = ranks.rank();
  if (kHeads % n != 0) throw zero::Error("the ranks share 8 heads evenly: take 1, 2, 4 or 8 ranks");
  const std::vector<at::Tensor> x = random({kTokens, kHidden}, 0).chunk(n);
  // ZeRO-3, over the same ranks: each holds a shard of all weights.
  const at::Tensor weights = random({4, kHidden, kHidden}, 1).mul_(0.2);
  const at::Tensor shard = weights.flatten().chunk(n)[rank].clone(),
                   whole = at::empty_like(weights);
  ranks.all_gather(whole, shard, Purpose::kParameter).wait();
  const Map to_heads = [&](auto& t) { return exchange(ranks, t, kHeadAxis, kPositionAxis); };
  const Map to_positions = [&](auto& t) { return exchange(ranks, t, kPositionAxis, kHeadAxis); };
  const Result mine = step({x[rank]}, whole.unbind(), to_heads, to_positions);
  const at::Tensor gradient = at::empty_like(shard);  // a shard of the sum
  ranks.reduce_scatter(gradient, mine.gradient, Purpose::kGradient, ReduceOp::kSum).wait();
  // Attention that nothing splits: all positions and all heads in one process.
  const Map same = [](const at::Tensor& t) { return t; };
  const Result right = step(x, weights.unbind(), same, same);
  const bool equal = mine.output.equal(right.output.chunk(n)[rank]) &&
                     gradient.equal(right.gradient.flatten().chunk(n)[rank]);
  const auto& sent = ranks.traffic();
  return fmt::format("{:4} {:10} {:6} {:12} {:11} {:10}  {}\n", rank, kTokens / n, kHeads / n,
                     sent.bytes(Purpose::kActivation), sent.bytes(Purpose::kParameter),
                     sent.bytes(Purpose::kGradient), equal ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  zero::dist::LaunchOptions options;
  options.world_size = argc > 1 && std::atoi(argv[1]) > 0 ? std::atoi(argv[1]) : 2;
  const auto exits = zero::dist::launch_ranks(options, run);
  zero::dist::check_all_well(exits);
  fmt::print("rank  positions  heads  activations  parameters  gradients  equal to unsplit\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
