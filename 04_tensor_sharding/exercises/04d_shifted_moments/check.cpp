// Compares what is loaded with what was saved, element by element.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "04d.hpp"

namespace exercise_04d {

using zero::exercise::Mistake;

const std::vector<std::int64_t> kSizes = {455, 12, 1000, 7};

// What rank `rank` of `ranks` holds of the whole tensors in `whole`.
RankState shards_of(const RankState& whole, int rank, int ranks) {
  const auto cut = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> shards;
    for (const at::Tensor& tensor : tensors) {
      const std::int64_t shard = shard_size(tensor.numel(), ranks);
      const at::Tensor padded = at::constant_pad_nd(tensor, {0, ranks * shard - tensor.numel()});
      shards.push_back(padded.narrow(0, rank * shard, shard));
    }
    return shards;
  };
  return {cut(whole.values), cut(whole.means), cut(whole.squares)};
}

// One kind of moment of tensor `t` on rank `rank`, and what it must be.
struct Moment {
  const char* name;
  std::size_t t;
  at::Tensor loaded, right;
  std::vector<at::Tensor> files;  // this moment in the files
  int rank, ranks;
};

std::string explain(const Moment& moment) {
  const auto saved_by = static_cast<std::int64_t>(moment.files.size());
  if (moment.loaded.count_nonzero().item<std::int64_t>() == 0) {
    return "are zeros: AdamW would begin anew, so the saved ones must be used";
  }
  // Element e was saved by rank r, and is in its file after the shards of earlier tensors.
  const auto i = moment.loaded.ne(moment.right).nonzero()[0].item<std::int64_t>();
  const std::int64_t e = moment.rank * shard_size(kSizes[moment.t], moment.ranks) + i;
  if (e >= kSizes[moment.t]) return "are not zero behind the end of the tensor";
  const std::int64_t saved_shard = shard_size(kSizes[moment.t], saved_by);
  const std::int64_t r = e / saved_shard;
  std::int64_t begin = 0, begin_without_padding = 0;
  for (std::size_t s = 0; s < moment.t; ++s) {
    const std::int64_t shard = shard_size(kSizes[s], saved_by);
    begin += shard;
    begin_without_padding += std::clamp(kSizes[s] - r * shard, std::int64_t{0}, shard);
  }
  // Where in that file the value is that was loaded instead.
  const at::Tensor places =
      moment.files[static_cast<std::size_t>(r)].eq(moment.loaded[i]).nonzero().flatten();
  const std::int64_t right = begin + e % saved_shard;
  if (places.numel() == 0) return fmt::format("are not those of element {} in any file", e);
  const at::Tensor nearest = (places - right).abs().argmin();
  const auto shift = places[nearest.item<std::int64_t>()].item<std::int64_t>() - right;
  const bool lacks_padding = shift == begin_without_padding - begin;
  return fmt::format("are shifted by {} in the file of rank {}{}", shift, r,
                     lacks_padding ? ": the moments in a file have the padding of each shard" : "");
}

void check_values(const RankState& loaded, const RankState& right, int rank) {
  for (const auto* all : {&loaded.values, &loaded.means, &loaded.squares}) {
    if (all->size() != kSizes.size()) throw Mistake("tensors are missing");
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      if ((*all)[t].sizes() == right.values[t].sizes()) continue;
      throw Mistake(
          fmt::format("a shard of tensor {} must have {} elements", t, right.values[t].numel()));
    }
  }
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    if (loaded.values[t].equal(right.values[t])) continue;
    throw Mistake(fmt::format(
        "the values of tensor {} on rank {} are wrong, and load() had them right", t, rank));
  }
}

void check_moments(const RankState& loaded, const RankState& right, const std::vector<File>& files,
                   int rank, int ranks) {
  std::vector<at::Tensor> means, squares;
  for (const File& file : files) {
    means.push_back(file.means);
    squares.push_back(file.squares);
  }
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    for (const Moment& moment :
         {Moment{"first", t, loaded.means[t], right.means[t], means, rank, ranks},
          Moment{"second", t, loaded.squares[t], right.squares[t], squares, rank, ranks}}) {
      if (moment.loaded.equal(moment.right)) continue;
      throw Mistake(fmt::format("the {} moments of tensor {} on rank {} {}", moment.name, t, rank,
                                explain(moment)));
    }
  }
}

void check_case(const Answer& answer, const RankState& whole, int saved_by, int ranks) {
  std::vector<File> files;
  for (int rank = 0; rank < saved_by; ++rank) {
    files.push_back(save(shards_of(whole, rank, saved_by), kSizes, rank, saved_by));
  }
  std::vector<RankState> loaded, right;
  for (int rank = 0; rank < ranks; ++rank) {
    loaded.push_back(answer.load(files, kSizes, rank, ranks));
    right.push_back(shards_of(whole, rank, ranks));
    check_values(loaded.back(), right.back(), rank);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    check_moments(loaded[r], right[r], files, rank, ranks);
  }
}

void check(const Answer& answer) {
  at::manual_seed(1);
  RankState whole;
  for (const std::int64_t size : kSizes) {
    whole.values.push_back(at::randn({size}));
    whole.means.push_back(at::randn({size}));
    whole.squares.push_back(at::randn({size}).square());
  }
  for (const int saved_by : {2, 3, 5, 1}) {
    for (const int ranks : {2, 3, 5, 1}) {
      zero::exercise::in_case(fmt::format("saved by {} ranks, loaded by {}", saved_by, ranks),
                              [&] { check_case(answer, whole, saved_by, ranks); });
    }
  }
}

}  // namespace exercise_04d
