#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// The ranks of a communicator as a grid with named axes. The last axis varies fastest: with the
/// axes {{"replica", R}, {"shard", S}}, rank = replica * S + shard. Along each axis there is a
/// group, of the ranks that differ from this one in that coordinate alone. Put the axis that
/// communicates most last: ranks of a host usually have consecutive numbers, so its groups lie
/// inside a host, and each group takes the fastest transport that its own ranks have.
///
/// Traffic is counted by axis, along("shard").traffic(), by link (Traffic::between_hosts()) and by
/// purpose; world().traffic() is the sum.
///
///     Mesh mesh(world, {{"data", Mesh::kRest}, {"tensor", 2}});
///     mesh.along("tensor").all_reduce(…);
///
/// A mesh can be made of what along() returns, too: a strategy that gets along("data") as its
/// communicator may cut it into replicas and shards.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;  ///< ranks along it, kRest or kRanksOfHost
  };
  /// As a size: the ranks that the other axes leave. At most one axis.
  static constexpr int kRest = -1;
  /// As a size: as many as there are of these ranks on this rank's host. The host's ranks must have
  /// consecutive numbers, and it must be the last axis.
  static constexpr int kRanksOfHost = -2;

  /// Called by all ranks of `world`, which must outlive the mesh; blocks until the groups are
  /// connected. Throws zero::Error on all ranks if they differ in `axes`, or if the sizes do not
  /// fit the number of ranks.
  Mesh(Communicator& world, std::vector<Axis> axes);

  Communicator& world() const { return world_; }
  /// With the sizes filled in.
  const std::vector<Axis>& axes() const { return axes_; }
  /// The group along `axis`: its size() is that of the axis, its rank() this rank's coordinate.
  /// `world` itself if the axis has all ranks. Throws zero::Error for an unknown axis.
  Communicator& along(std::string_view axis) const;

  /// Averages `tensor` over all ranks, in place, in the order of the mesh: the sums along the last
  /// axis are added along the axis before it, and so on; ((r0+…+r(S-1)) + (rS+…) + …) / N. The sum
  /// is divided once. With ReduceType::kFloat32, sums of 2-byte types stay in float32 on the way.
  /// On an axis of n ranks each sends 2 (n-1)/n of it. Throws zero::Error for integers. Called by
  /// all ranks; blocks.
  void average(const at::Tensor& tensor, Purpose purpose, ReduceType type) const;
  /// Bytes that this rank sends in average() of `elements` elements.
  std::int64_t average_bytes(std::int64_t elements, std::int64_t element_size) const;

  /// "replica 2 x shard 4"
  std::string text() const;

 private:
  void fill_in_sizes();
  void check_hosts() const;

  Communicator& world_;
  std::vector<Axis> axes_;
  std::vector<std::unique_ptr<Communicator>> groups_;  // by axis; null: the world itself
};

/// The axes of data-parallel ranks, of which groups of `shard_size` (or Mesh::kRanksOfHost) share
/// the model states: "replica" and "shard".
std::vector<Mesh::Axis> data_axes(std::int64_t shard_size);

}  // namespace zero::dist
