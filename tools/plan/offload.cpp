#include "offload.hpp"

#include <numeric>

#include <zero/optim/offload/tile_file.hpp>

namespace zero::plan {

FileTraffic file_traffic(const std::vector<UnitInFile>& units, std::int64_t micro_batches) {
  FileTraffic traffic;
  for (const UnitInFile& unit : units) {
    const std::int64_t gathers = &unit == &units.front() ? 1 : 2;
    traffic.in_passes += micro_batches * gathers * unit.file;
    if (unit.is_updated) traffic.in_update += unit.file;
  }
  return traffic;
}

std::int64_t parameters_in_memory(const std::vector<UnitInFile>& units, std::int64_t lookahead) {
  std::vector<std::int64_t> shard, whole;
  for (const UnitInFile& unit : units) {
    shard.push_back(unit.file == 0 ? 0 : optim::TileFile::buffer_bytes(unit.file));
    whole.push_back(shard.back() + unit.gathered);
  }
  // Of units[begin] to units[end - 1], those that there are.
  const auto sum = [&](const auto& of, std::int64_t begin, std::int64_t end) {
    const auto at = [&](std::int64_t i) {
      return of.begin() + std::clamp<std::int64_t>(i, 0, std::ssize(of));
    };
    return std::accumulate(at(begin), at(end), std::int64_t{0});
  };
  std::int64_t most = whole.front();
  for (std::int64_t unit = 1; unit < std::ssize(units); ++unit) {
    const std::int64_t after = unit + lookahead + 1, before = unit - lookahead - 1;
    most = std::max({most, whole[0] + sum(whole, unit, after) + sum(shard, after, after + 1),
                     whole[0] + sum(whole, std::max<std::int64_t>(before + 1, 1), unit + 1) +
                         (before < 1 ? 0 : shard[static_cast<std::size_t>(before)]),
                     sum(shard, unit - 2, unit + 1)});
  }
  return most;
}

}  // namespace zero::plan
