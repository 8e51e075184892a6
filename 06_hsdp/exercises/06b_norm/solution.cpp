#include "06b.hpp"

using zero::dist::Mesh;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

double clip_gradients(const std::vector<at::Tensor>& shards, double max_norm, const Mesh& mesh) {
  at::Tensor squares = at::zeros({1}, at::kDouble);
  for (const at::Tensor& shard : shards) squares += shard.to(at::kDouble).square().sum();
  // Each group has the whole gradient once.
  mesh.along("shard").all_reduce(squares, Purpose::kControl, ReduceOp::kSum).wait();
  const double norm = std::sqrt(squares.item<double>());
  const double scale = std::min(1.0, max_norm / (norm + 1e-6));
  for (const at::Tensor& shard : shards) shard.mul_(scale);
  return norm;
}
