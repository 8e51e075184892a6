#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// The ranks of a program as a grid with named axes, and the groups of ranks along them: the one
/// object that knows all axes. The last axis varies fastest: with the axes {{"replica", R},
/// {"shard", S}}, rank = replica * S + shard. Along each axis there is a group, of the ranks that
/// differ from this one in that coordinate alone. Put the axis that communicates most last: ranks
/// of a host usually have consecutive numbers, so its groups lie inside a host, and each group
/// takes the fastest transport that its own ranks have.
///
/// Training knows these axes by name:
///
///     data       ranks with batches of their own: a strategy's communicator()
///       shard    with_shards() cuts "data" for chapters 06 and 07: consecutive data ranks. Under
///                HSDP they share the model states, under ZeRO++ all data ranks do
///       replica  the ranks at the same place in all these groups
///     tensor     ranks that share the layers (nn/tensor_parallel.hpp)
///     pipeline   ranks that have stages of the model (chapter 09)
///
/// With no "data", "tensor" or "pipeline" all ranks are data ranks. The program makes the mesh; the
/// model, the strategy and the trainer take their groups from it, and only strategies call
/// with_shards().
///
///     Mesh mesh(world, {{"data", Mesh::kRest}, {"tensor", 2}});
///     mesh.along("tensor").all_reduce(…);
///
/// A communicator converts to the mesh whose only axis is "data". Copies share the groups. `world`
/// must outlive them all.
///
/// Traffic is counted by axis, along("shard").traffic(), by link (Traffic::between_hosts()) and by
/// purpose; world().traffic() is the sum.
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

  /// All ranks of `world` are on the axis "data". Sends nothing.
  // NOLINTNEXTLINE(google-explicit-constructor): most programs have one axis.
  Mesh(Communicator& world);

  /// Called by all ranks of `world`; blocks until the groups are connected. Throws zero::Error on
  /// all ranks if they differ in `axes`, or if the sizes do not fit the number of ranks.
  Mesh(Communicator& world, std::vector<Axis> axes);

  /// The same ranks, with the axis "data" cut into "replica" and "shard": groups of `shard_size`
  /// (or kRanksOfHost) consecutive data ranks, and the ranks at the same place in all groups.
  /// data() stays. Called by all ranks; blocks and throws as the constructor does.
  Mesh with_shards(std::int64_t shard_size) const;

  Communicator& world() const { return *world_; }
  /// The group along `axis`: its size() is that of the axis, its rank() this rank's coordinate.
  /// `world` itself if the axis has all ranks. Throws zero::Error for an unknown axis.
  Communicator& along(std::string_view axis) const;

  // The groups of the three axes. One that the mesh does not have is this rank alone: every
  // operation there is the identity.
  Communicator& data() const { return group("data"); }
  Communicator& tensor() const { return group("tensor"); }
  Communicator& pipeline() const { return group("pipeline"); }

  /// Some of "data", "tensor" and "pipeline"; literals.
  using AxisNames = std::vector<std::string_view>;
  /// The place of rank `rank` of world() on `axes` together: ranks with the same place differ on
  /// others only. "data" is all axes but "tensor" and "pipeline". Without these axes it is 0.
  int place(int rank, const AxisNames& axes) const;
  /// Whether this rank has the same place there.
  bool shares(int rank, const AxisNames& axes) const {
    return place(rank, axes) == place(world_->rank(), axes);
  }

  /// verify_same() of agreement.hpp over world(): ranks with the same place on `axes` are of one
  /// place.
  void verify_same_at(const AxisNames& axes, const std::string& what,
                      const std::function<std::string()>& text) const;
  /// Whether `mine` is true on any rank. Called by all ranks; blocks.
  bool any(bool mine) const;

  /// "replica 2 x shard 4"
  std::string text() const;

 private:
  void cut(Communicator& ranks, std::vector<Axis>& axes);
  Communicator& group(std::string_view axis) const;

  Communicator* world_;
  std::vector<Axis> axes_;
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> groups_;  // by axis
  std::shared_ptr<Communicator> alone_;  // for axes that it does not have
};

}  // namespace zero::dist
