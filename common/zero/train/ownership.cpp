#include <algorithm>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/train/ownership.hpp>

namespace zero::train {
namespace {

const std::vector<std::string> kNames = {"size", "count", "offset"};  // as in Ownership

std::vector<int> by_size(const std::vector<std::int64_t>& bytes, int world_size) {
  std::vector<std::size_t> largest_first(bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(world_size), 0);
  std::vector<int> owners(bytes.size());
  for (const std::size_t i : largest_first) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += bytes[i];
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

std::vector<int> by_count(std::size_t count, int world_size) {
  const std::size_t ranks = static_cast<std::size_t>(world_size);
  std::vector<int> owners;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t share = count / ranks + (rank < count % ranks ? 1 : 0);
    owners.insert(owners.end(), share, static_cast<int>(rank));
  }
  return owners;
}

std::vector<int> by_offset(const std::vector<std::int64_t>& bytes, int world_size) {
  const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const std::int64_t share = std::max<std::int64_t>(1, (total + world_size - 1) / world_size);
  std::vector<int> owners;
  std::int64_t offset = 0;
  for (const std::int64_t size : bytes) {
    owners.push_back(static_cast<int>(std::min<std::int64_t>(offset / share, world_size - 1)));
    offset += size;
  }
  return owners;
}

}  // namespace

Ownership ownership_from(const std::string& name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<Ownership>(found - kNames.begin());
  throw Error(base::unknown_name_message("ownership", name, kNames));
}

std::string name(Ownership ownership) { return kNames[static_cast<std::size_t>(ownership)]; }

std::vector<int> assign_owners(const std::vector<std::int64_t>& bytes, int world_size,
                               Ownership ownership) {
  switch (ownership) {
    case Ownership::kBySize:
      return by_size(bytes, world_size);
    case Ownership::kByCount:
      return by_count(bytes.size(), world_size);
    case Ownership::kByOffset:
      return by_offset(bytes, world_size);
  }
  return {};
}

}  // namespace zero::train
