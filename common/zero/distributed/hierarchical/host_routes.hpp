#pragma once

// Private to common/zero/distributed.

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/work.hpp>

namespace zero::dist {

/// Which way collectives take between R hosts of S ranks each, with consecutive numbers: rank
/// host * S + place. A gather or broadcast sends a piece to each other host once, to the rank of
/// the same place. A reduction is a chain: lane p consists of the ranks of place p, host after
/// host. Each adds the values of its host's ranks to the sum that it received, one after the other,
/// and passes it on; the last has the sum in rank order.
class HostRoutes {
 public:
  /// "auto", "direct" or "hierarchical": the variable ZERO_BETWEEN_HOSTS, or else `between_hosts`,
  /// of ConnectOptions. Throws zero::Error for another word.
  static std::string choice(const std::string& between_hosts);

  /// R and S of these hosts, by rank; nothing if there is one host, if hosts have one rank or
  /// different numbers, or if the ranks of a host do not follow each other.
  static std::optional<HostRoutes> of(const std::vector<int>& hosts, const std::string& choice);

  int hosts() const { return hosts_; }
  int per_host() const { return per_host_; }
  int host_of(int rank) const { return rank / per_host_; }
  int place_of(int rank) const { return rank % per_host_; }
  int rank_at(int host, int place) const { return host * per_host_ + place; }

  /// Elements of the tensor that is reduced, and the rank that gets their sum.
  struct Range {
    std::int64_t begin;
    std::int64_t length;
    int owner;  ///< -1: all ranks
  };
  /// What lane `place` adds up: in a reduction to owners the pieces of its own ranks.
  std::vector<Range> lane(const Call& call, std::int64_t elements, int place) const;

  /// Whether the call for `tensor` (what is reduced, gathered or broadcast) takes this way.
  bool take(const Call& call, const at::Tensor& tensor) const;
  /// Bytes that `rank` sends to other hosts in a call that does; nothing for one that does not.
  std::optional<std::int64_t> sent_between_hosts(const Call& call, const at::Tensor& tensor,
                                                 int rank) const;

 private:
  HostRoutes(int hosts, int per_host, std::string choice)
      : hosts_(hosts), per_host_(per_host), choice_(std::move(choice)) {}
  /// From the host that sends most: sent directly, and this way. Nothing for other operations.
  std::optional<std::pair<std::int64_t, std::int64_t>> bytes_of_a_host(
      Operation operation, const at::Tensor& tensor) const;

  int hosts_;
  int per_host_;
  std::string choice_;
};

/// In which sums travel that are not complete: float32 for half types.
at::ScalarType type_of_sums(at::ScalarType dtype);

}  // namespace zero::dist
