#include "10b.hpp"

using exercise_10b::Handle;
using exercise_10b::Shard;
using exercise_10b::Tile;

void update_shard(Shard& shard) {
  std::vector<Tile> tiles;
  for (std::int64_t begin = 0; begin < shard.elements(); begin += shard.most_count()) {
    tiles.push_back({begin, std::min(shard.most_count(), shard.elements() - begin)});
  }
  std::vector<Handle> reads, writes;
  for (int t = 0; t < static_cast<int>(tiles.size()); ++t) {
    // The first round reads two tiles, the last one none.
    while (reads.size() < std::min<std::size_t>(t + 2, tiles.size())) {
      const auto next = static_cast<int>(reads.size());
      reads.push_back(shard.start_read(next % 2, tiles[next]));
    }
    shard.wait(reads[t]);
    shard.update(t % 2, tiles[t]);
    writes.push_back(shard.start_write(t % 2, tiles[t]));
  }
  for (const Handle write : writes) shard.wait(write);
}
