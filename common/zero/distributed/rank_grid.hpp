#pragma once

#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// All ranks of several axes that cross each other, such as the data axis and the tensor axis of a
/// mesh. An axis is a group of ranks; each rank is in one group of every axis. A check over one
/// axis is seen by that group alone; a check over the grid has the same result on all ranks.
///
/// All ranks of the grid call the same functions in the same order.
class RankGrid {
 public:
  /// `axes`: this rank's group of each axis, not owned; null ones are left out. The rank within the
  /// grid counts along the first axis fastest: data rank d and tensor rank t of {data, tensor} are
  /// rank t * (data ranks) + d.
  explicit RankGrid(std::vector<Communicator*> axes);

  int rank() const;
  int size() const;

  /// Blocks until every rank has passed its text; returns the texts by rank. For start-up checks
  /// and checkpoints: slow, through the store. Throws as Communicator::exchange() does.
  std::vector<std::string> exchange(const std::string& text) const;

  /// Blocks until all ranks have called it; throws zero::Error on every rank if the texts differ,
  /// as Communicator::verify_same_on_all_ranks() does.
  void verify_same_on_all_ranks(const std::string& what, const std::string& text) const;

  /// Blocks until all ranks have called it.
  void barrier() const;

 private:
  std::vector<Communicator*> axes_;
};

}  // namespace zero::dist
