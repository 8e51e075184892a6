#include "04d.hpp"

using exercise_04d::File;
using exercise_04d::RankState;
using exercise_04d::shard_size;

// Copies `count` elements of `from` into `to`.
void copy(const at::Tensor& to, std::int64_t to_begin, const at::Tensor& from,
          std::int64_t from_begin, std::int64_t count) {
  to.narrow(0, to_begin, count).copy_(from.narrow(0, from_begin, count));
}

RankState load(const std::vector<File>& files, const std::vector<std::int64_t>& sizes, int rank,
               int ranks) {
  const auto saved_by = static_cast<std::int64_t>(files.size());
  RankState state;
  std::int64_t in_file = 0;  // where the moments of a tensor begin in each file
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t shard = shard_size(sizes[t], ranks);
    const std::int64_t saved_shard = shard_size(sizes[t], saved_by);
    for (auto* all : {&state.values, &state.means, &state.squares}) {
      all->push_back(at::zeros({shard}));
    }
    // This rank wants elements b to e of the tensor. A file has saved_shard elements from r on.
    const std::int64_t b = rank * shard, e = std::min(b + shard, sizes[t]);
    std::int64_t r = 0;
    for (const File& file : files) {
      const std::int64_t begin = std::max(b, r), end = std::min(e, r + saved_shard);
      if (begin < end) {
        const std::int64_t there = in_file + begin - r;
        copy(state.values[t], begin - b, file.values[t], begin - r, end - begin);
        copy(state.means[t], begin - b, file.means, there, end - begin);
        copy(state.squares[t], begin - b, file.squares, there, end - begin);
      }
      r += saved_shard;
    }
    in_file += shard;
  }
  return state;
}
