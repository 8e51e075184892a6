// A published example partitions the activations of attention along the batch, over data-parallel
// ranks. This program runs it as printed. Then it cuts what a checkpoint keeps: over data-parallel
// ranks, which have different samples, and over tensor-parallel ranks, which have the same.

#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include <zero/base/error.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/tensor_parallel.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using enum zero::memory::Category;
using Map = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kTokens = 6, kHidden = 32, kHeads = 8;

at::Tensor samples_of(int rank, std::int64_t samples) {
  at::manual_seed(rank);
  return at::randn({samples, kTokens, kHidden});
}

// The matrices q, k, v and out. A part is some columns of the first three, some rows of out.
std::vector<at::Tensor> weights(int parts = 1, int part = 0) {
  at::manual_seed(100);  // the same on every rank
  std::vector<at::Tensor> all = at::randn({4, kHidden, kHidden}).mul_(0.2).unbind();
  for (int i = 0; i < 4; ++i) all[i] = all[i].chunk(parts, i < 3 ? 1 : 0)[part].clone();
  return all;
}

// With the sums of the example: b is a sample, s and T are tokens, h is a head, d a feature of it.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto heads = [](const at::Tensor& t) { return t.unflatten(2, {-1, kHidden / kHeads}); };
  const at::Tensor scores = at::einsum("bshd,bThd->bshT", {heads(q), heads(k)});
  const at::Tensor shares = (scores / std::sqrt(kHidden / kHeads)).softmax(-1);
  return at::einsum("bshT,bThd->bshd", {shares, heads(v)}).flatten(2);
}

// The tensors `mine` of all ranks, one after the other, as [samples, tokens, hidden].
at::Tensor gathered(Communicator& ranks, const at::Tensor& mine) {
  const at::Tensor all = at::empty({mine.numel() * ranks.size()});
  ranks.all_gather(all, mine, Purpose::kActivation).wait();
  return all.view({-1, kTokens, kHidden});
}

// The example: a rank keeps 1/N of its q, k and v, along the batch, and gathers k and v.
std::string as_published(Communicator& data, std::int64_t samples) {
  const at::Tensor x = samples_of(data.rank(), samples);
  const std::vector<at::Tensor> w = weights();
  const auto of_x = [&](int i) { return x.matmul(w[i]); };
  const auto part = [&](int i) { return of_x(i).chunk(data.size())[data.rank()].clone(); };
  const at::Tensor q = part(0), k = gathered(data, part(1)), v = gathered(data, part(2));
  std::string text = fmt::format("  x {}, q {}, k and v {}: ", x.sizes(), q.sizes(), k.sizes());
  try {
    const at::Tensor result = gathered(data, attention(q, k, v).matmul(w[3]));
    const at::Tensor right = attention(of_x(0), of_x(1), of_x(2)).matmul(w[3]);
    const at::Tensor close = at::isclose(result.unsqueeze(1), right, 1e-4, 1e-5);
    return text + fmt::format("no error\n    result {}: right for {} of {} samples\n",
                              result.sizes(), close.flatten(2).all(2).sum().item<int>(), samples);
  } catch (const c10::Error& error) {
    return text + "error\n    " + error.what_without_backtrace() + "\n";
  }
}

// Forward keeps keep(x), and backward computes from restore(keep(x)). Returns a row of the table,
// and says if the gradients are `expected`; the first row sets these.
std::string checkpoint(Communicator& ranks, bool tensor, const char* what, const Map& keep,
                       const Map& restore, std::vector<at::Tensor>& expected) {
  const auto axis = tensor ? zero::nn::TensorParallel(ranks) : zero::nn::TensorParallel();
  std::vector<at::Tensor> w = weights(axis.ranks(), tensor ? ranks.rank() : 0);
  for (at::Tensor& one : w) one.requires_grad_();
  at::Tensor x = samples_of(tensor ? 0 : ranks.rank(), 2 * ranks.size());
  zero::memory::recharge(x, kActivations);  // counted as such from here on
  const std::int64_t before = ranks.traffic().bytes();
  const at::Tensor kept = keep(x);
  zero::memory::recharge(kept, kActivations);
  x.reset();
  const std::int64_t bytes = zero::memory::snapshot()[kActivations];
  const at::Tensor whole = restore(kept).requires_grad_();
  const std::int64_t sent = ranks.traffic().bytes() - before;
  const at::Tensor in = axis.enter(whole);  // a tensor rank has some of the heads
  const at::Tensor out = attention(in.matmul(w[0]), in.matmul(w[1]), in.matmul(w[2])).matmul(w[3]);
  axis.leave(out).sum().backward();
  w.push_back(whole);
  for (at::Tensor& one : w) one = one.grad();
  if (expected.empty()) expected = w;
  const bool same = std::equal(w.begin(), w.end(), expected.begin(), at::equal);
  return fmt::format("  {:8}{:14}{:8}{:8}  {}\n", tensor ? "tensor" : "data", what, bytes, sent,
                     same ? "yes" : "no");
}

std::string run(Communicator& ranks) {
  const int n = ranks.size();
  if (kHeads % n != 0) throw zero::Error("the ranks share 8 heads evenly: take 1, 2, 4 or 8 ranks");
  const Map all = [](const at::Tensor& x) { return x; };
  const Map part = [&](const at::Tensor& x) { return x.flatten().chunk(n)[ranks.rank()].clone(); };
  const Map gather = [&](const at::Tensor& mine) { return gathered(ranks, mine); };
  const Map exchange = [&](const at::Tensor& x) {  // part r to rank r; a second call undoes
    const at::Tensor parts = at::empty_like(x);
    ranks.all_to_all(parts, x, Purpose::kActivation).wait();
    return parts;
  };
  std::string text = "as published:\n" + as_published(ranks, 2 * n) + as_published(ranks, n);
  text += "a checkpoint:\n  axis    kept             bytes    sent  same gradients\n";
  for (const bool tensor : {false, true}) {
    std::vector<at::Tensor> expected;
    text += checkpoint(ranks, tensor, "all", all, all, expected);
    text += checkpoint(ranks, tensor, "1/N", part, gather, expected);
    if (!tensor) text += checkpoint(ranks, tensor, "1/N of each", exchange, exchange, expected);
  }
  for (const std::string& other : ranks.exchange(text)) {
    if (other != text) throw zero::Error("ranks have different figures:\n" + text + other);
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();  // the allocator that counts, before there is a tensor
  zero::dist::LaunchOptions options;
  options.world_size = argc > 1 && std::atoi(argv[1]) > 0 ? std::atoi(argv[1]) : 2;
  const auto exits = zero::dist::launch_ranks(options, run);
  zero::dist::check_all_well(exits);
  fmt::print("{} ranks, {}", exits.size(), exits[0].result);
}
