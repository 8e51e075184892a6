// Shards a model's gradient in groups that hold copies, and compares what clipping does with the
// norm of the whole.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "06b.hpp"

namespace exercise_06b {

using zero::dist::Communicator;
using zero::dist::Mesh;
using zero::exercise::Mistake;

// Elements of the gradients; some shards are empty.
constexpr std::int64_t kModel[] = {60, 7, 1, 12};

struct Sizes {
  int ranks, sharing;
};
// First one whose numbers differ, so that a mistake shows which of them it is about.
constexpr Sizes kMeshes[] = {{6, 2}, {4, 2}, {6, 3}, {3, 1}, {2, 2}, {1, 1}};

std::vector<at::Tensor> whole_gradients() {
  at::manual_seed(6);
  std::vector<at::Tensor> gradients;
  for (const std::int64_t elements : kModel) gradients.push_back(at::randn({elements}));
  return gradients;
}

std::vector<at::Tensor> shards_of_rank(const Communicator& group) {
  std::vector<at::Tensor> shards;
  for (const at::Tensor& whole : whole_gradients()) {
    const auto cut = [&](int rank) {
      return zero::dist::piece_begin(whole.numel(), rank, group.size());
    };
    const std::int64_t begin = cut(group.rank());
    shards.push_back(whole.narrow(0, begin, cut(group.rank() + 1) - begin).clone());
  }
  return shards;
}

double whole_norm() {
  double squares = 0;
  for (const at::Tensor& gradient : whole_gradients()) {
    squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

std::string explain_norm(double norm, double right, int groups, int sharing) {
  const double times = norm / right;
  const std::string begin =
      fmt::format("the norm is {:.3f} times too {}: ", times > 1 ? times : 1 / times,
                  times > 1 ? "large" : "small");
  if (is_near(times * times, groups)) {
    return begin + fmt::format("each shard counts once for each of {} groups", groups);
  }
  if (is_near(times * times * sharing, 1)) return begin + "the squares are averaged, not added up";
  if (is_near(times * times * groups, 1)) {
    return begin + fmt::format(
                       "it was divided by {}, but its square is what counts each of {} "
                       "groups",
                       groups, groups);
  }
  return begin + "is each shard's square in it, and once?";
}

// Calls the answer once; the norm is limited to `limit`.
void check_clipping(const Answer& answer, const Mesh& mesh, double limit) {
  Communicator& world = mesh.world();
  const Communicator& group = mesh.along("shard");
  const int groups = mesh.along("replica").size();
  const std::string begin = fmt::format("in {} groups of {}, ", groups, group.size());
  const std::vector<at::Tensor> shards = shards_of_rank(group);
  const zero::dist::Traffic before = world.traffic();
  const double norm = answer.clip_gradients(shards, limit, mesh);
  const zero::dist::Traffic sent = world.traffic().since(before);

  const std::vector<double> norms = all_gather_scalars(world, {norm});
  for (std::size_t rank = 1; rank < norms.size(); ++rank) {
    if (norms[rank] == norms[0]) continue;
    throw Mistake(fmt::format(
        "{}ranks 0 and {} have different norms: {}", begin, rank,
        static_cast<int>(rank) < group.size()
            ? "the ranks of a group hold different shards, whose squares must be added up"
            : "the groups do not compute the same"));
  }
  const double right = whole_norm();
  if (!is_near(norm, right)) throw Mistake(begin + explain_norm(norm, right, groups, group.size()));
  if (sent.between_hosts() > 0) {
    throw Mistake(
        fmt::format("{}rank {} sends {} bytes to another group, which has the same squares already",
                    begin, world.rank(), sent.between_hosts()));
  }
  if (sent.bytes() > zero::dist::all_reduce_bytes(1, 8, group.rank(), group.size())) {
    throw Mistake(fmt::format("{}rank {} sends {} bytes, and one double in the group is enough",
                              begin, world.rank(), sent.bytes()));
  }
  const bool stays = limit > right;
  const std::vector<at::Tensor> unclipped = shards_of_rank(group);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (stays ? shards[i].equal(unclipped[i])
              : shards[i].allclose(unclipped[i] * (limit / right), 1e-5, 1e-7)) {
      continue;
    }
    throw Mistake(fmt::format("{}the norm is right, but {}", begin,
                              stays ? "a gradient within the limit is changed"
                                    : "the gradient is not scaled to max_norm by it"));
  }
}

void check(const Answer& answer) {
  for (const auto& [ranks, sharing] : kMeshes) {
    zero::exercise::on_ranks(ranks, [&, sharing = sharing](Communicator& world) {
      std::vector<int> hosts;  // each group is one
      for (int rank = 0; rank < world.size(); ++rank) hosts.push_back(rank / sharing);
      world.set_hosts(hosts);
      const Mesh mesh(world, {{"replica", Mesh::kRest}, {"shard", sharing}});
      for (const double limit : {1.0, 100.0}) check_clipping(answer, mesh, limit);
    });
  }
}

}  // namespace exercise_06b
