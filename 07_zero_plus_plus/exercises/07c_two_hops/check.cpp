// Compares the average with the true one, up to what two roundings to 4 bits may change, and bytes
// with those of two hops.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "07c.hpp"

namespace exercise_07c {

using zero::dist::Communicator;
using zero::exercise::Mistake;

struct Sizes {
  int hosts, ranks_of_host;
};
// First one in which no number of hosts is a number of ranks.
constexpr Sizes kMeshes[] = {{3, 2}, {2, 2}, {2, 3}, {1, 2}, {2, 1}, {1, 1}};
constexpr std::int64_t kRows = 12, kColumns = 80, kVector = 60;

// Ranks have gradients of different sizes, and so have blocks.
at::Tensor gradient_of(int rank, bool matrix) {
  at::manual_seed(rank);
  const at::Tensor sizes = at::pow(2.0, at::randint(-3, 4, {kRows, 1})) * (rank % 3 + 1);
  return matrix ? at::randn({kRows, kColumns}) * sizes : at::randn({kVector});
}

// In double precision, of all elements.
struct Truth {
  at::Tensor average;
  at::Tensor bound;  // how much two roundings may change
};

// Half a step of the block of each element, and a little for the arithmetic of float32.
at::Tensor half_step(const at::Tensor& flat) {
  return (flat.view({-1, kBlock}).abs().amax(1) / 7 * 0.5001).repeat_interleave(kBlock);
}

Truth truth_of(int hosts, int ranks_of_host, bool matrix) {
  const std::int64_t elements = matrix ? kRows * kColumns : kVector;
  Truth truth{at::zeros({elements}, at::kDouble), at::zeros({elements}, at::kDouble)};
  for (int host = 0; host < hosts; ++host) {
    at::Tensor sum = at::zeros({elements}, at::kDouble), lost = at::zeros_like(sum);
    for (int place = 0; place < ranks_of_host; ++place) {
      const at::Tensor gradient =
          gradient_of(host * ranks_of_host + place, matrix).flatten().to(at::kDouble);
      sum += gradient;
      if (matrix) lost += half_step(gradient);
    }
    truth.average += sum;
    if (matrix) truth.bound += lost + half_step(sum.abs() + lost);
  }
  const double ranks = hosts * ranks_of_host;
  truth.average /= ranks;
  truth.bound = truth.bound / ranks + truth.average.abs().max() * 1e-6;
  return truth;
}

// What `shard` is times too large or too small, in words; empty if it is no such factor.
std::string factor_of(const at::Tensor& shard, const at::Tensor& right, const Mesh& mesh) {
  const double factor = ((shard * right).sum() / right.square().sum()).item<double>();
  const auto is = [&](double number) { return number > 1 && std::abs(factor / number - 1) < 0.1; };
  const auto is_part = [&](double number) {
    return number > 1 && std::abs(factor * number - 1) < 0.1;
  };
  const int n = mesh.world.size(), s = mesh.group.size(), r = mesh.across.size();
  if (is(n)) return fmt::format("{} times too large: it is the sum", n);
  if (is(s)) {
    return fmt::format("{} times too large: the sum of {} ranks is divided by the {} hosts", s, n,
                       r);
  }
  if (is(r)) {
    return fmt::format("{} times too large: the sum of {} ranks is divided by the {} of a host", r,
                       n, s);
  }
  for (const int extra : {n, s, r}) {
    if (!is_part(extra)) continue;
    return fmt::format("{} times too small: it is divided once too often", extra);
  }
  return "";
}

void check_values(const at::Tensor& result, const Truth& truth, const Mesh& mesh,
                  const std::string& what) {
  const int ranks = mesh.world.size(), rank = mesh.world.rank();
  const std::vector<at::Tensor> shards = truth.average.chunk(ranks);
  const at::Tensor& right = shards[rank];
  const std::string begin = fmt::format("the average of {} on rank {} ", what, rank);
  if (!result.defined() || result.numel() != right.numel()) {
    throw Mistake(fmt::format("{}has {} elements, and a shard has {}", begin,
                              result.defined() ? result.numel() : 0, right.numel()));
  }
  const at::Tensor shard = result.flatten().to(at::kDouble);
  const at::Tensor errors = (shard - right).abs() / truth.bound.chunk(ranks)[rank];
  if (errors.max().item<double>() <= 1) return;
  if (const std::string factor = factor_of(shard, right, mesh); !factor.empty()) {
    throw Mistake(begin + "is " + factor);
  }
  for (int other = 0; other < ranks; ++other) {
    if (((shard - shards[other]).abs() > truth.bound.chunk(ranks)[other]).any().item<bool>()) {
      continue;
    }
    throw Mistake(fmt::format("rank {} has the shard of rank {}", rank, other));
  }
  throw Mistake(fmt::format("{}is up to {:.1f} times as wrong as two roundings to 4 bits allow",
                            begin, errors.max().item<double>()));
}

struct Bytes {
  std::int64_t inside, between;  // hosts
};

// What a rank sends. `shard`: elements.
Bytes bytes_of(const Mesh& mesh, std::int64_t shard, bool matrix) {
  const int s = mesh.group.size(), r = mesh.across.size();
  if (!matrix) return {(s - 1) * 4 * shard, (r - 1) * s * 4 * shard};
  const std::int64_t each = shard / 2 + 4 * (shard / kBlock);
  return {(s - 1) * r * each, (r - 1) * each};
}

void check_gradient(const Answer& answer, const Mesh& mesh, bool matrix) {
  const std::string what = matrix ? "a matrix" : "a vector";
  const zero::dist::Traffic before = mesh.world.traffic();
  const at::Tensor result = answer.average(mesh, gradient_of(mesh.world.rank(), matrix));
  const zero::dist::Traffic sent = mesh.world.traffic().since(before);
  const Truth truth = truth_of(mesh.across.size(), mesh.group.size(), matrix);
  check_values(result, truth, mesh, what);
  const auto [inside, between] = bytes_of(mesh, truth.average.numel() / mesh.world.size(), matrix);
  const std::int64_t sent_between = sent.between_hosts(zero::dist::Purpose::kGradient);
  if (sent.bytes() == inside + between && sent_between == between) return;
  throw Mistake(fmt::format(
      "for {} rank {} sends {} bytes inside its host and {} to others, and {} and {} are right: {}",
      what, mesh.world.rank(), sent.bytes() - sent_between, sent_between, inside, between,
      matrix ? "two hops in 4 bits" : "a reduce-scatter in float32"));
}

// Whole numbers up to 7 times a scale, the same on all ranks, lose nothing in either hop.
void check_equal_gradients(const Answer& answer, const Mesh& mesh) {
  at::manual_seed(7);
  const at::Tensor gradient = at::randint(-7, 8, {kRows, kColumns}).to(at::kFloat);
  gradient.view({-1, kBlock}).select(1, 0).fill_(7);
  gradient.mul_(at::pow(2.0, at::randint(-3, 4, {kRows, 1})));
  const at::Tensor right = gradient.flatten().chunk(mesh.world.size())[mesh.world.rank()];
  const at::Tensor shard = answer.average(mesh, gradient.clone());
  if ((shard.flatten() - right).abs().max().item<double>() < 1e-4) return;
  throw Mistake("if all ranks have one gradient of whole numbers up to 7, the average must be it");
}

void check_mesh(const Answer& answer, Communicator& world, const Sizes& sizes) {
  const auto [count, ranks_of_host] = sizes;
  std::vector<int> hosts, of_group, of_across;
  for (int rank = 0; rank < world.size(); ++rank) {
    hosts.push_back(rank / ranks_of_host);
    if (hosts.back() == world.rank() / ranks_of_host) of_group.push_back(rank);
    if (rank % ranks_of_host == world.rank() % ranks_of_host) of_across.push_back(rank);
  }
  world.set_hosts(hosts);
  const auto group = world.split(of_group, fmt::format("host {}", of_group[0]));
  const auto across = world.split(of_across, fmt::format("place {}", of_across[0]));
  const Mesh mesh{world, *group, *across};
  zero::exercise::in_case(fmt::format("with {} hosts of {} ranks", count, ranks_of_host), [&] {
    check_gradient(answer, mesh, /*matrix=*/true);
    check_gradient(answer, mesh, /*matrix=*/false);
    check_equal_gradients(answer, mesh);
  });
}

void check(const Answer& answer) {
  for (const Sizes& sizes : kMeshes) {
    zero::exercise::on_ranks(sizes.hosts * sizes.ranks_of_host,
                             [&](Communicator& world) { check_mesh(answer, world, sizes); });
  }
}

}  // namespace exercise_07c
