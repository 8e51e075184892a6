#pragma once

#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>

namespace zero::dist {

/// What a rank tells all others at once, so that all go on or all throw.
struct Statement {
  struct Topic {
    std::string what;  ///< for messages: "the optimizer's settings"
    std::string text;  ///< of lines
    /// The text is the same on all ranks with the same place there.
    Mesh::AxisNames axes = {"pipeline"};
  };
  /// Why this rank may not go on; empty: it may. "{ranks}" stands for all ranks that say the same,
  /// by their numbers in the world.
  std::string problem = "";
  std::vector<Topic> topics = {};
  std::vector<double> numbers = {};
};

/// The numbers of all ranks, by rank of mesh.world(). Called by all of them with as many topics and
/// numbers; blocks. One exchange, in which topics are digests; texts follow only if something is
/// wrong. Throws zero::Error on all ranks if one has a problem or texts differ.
std::vector<std::vector<double>> exchange(const Mesh& mesh, const Statement& mine);

}  // namespace zero::dist
