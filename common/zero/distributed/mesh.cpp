#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <ranges>
#include <set>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/connect_in_folder.hpp>
#include <zero/distributed/mesh.hpp>

namespace zero::dist {
namespace {

std::string text_of(const std::vector<Mesh::Axis>& axes) {
  std::vector<std::string> parts;
  for (const Mesh::Axis& axis : axes) {
    parts.push_back(axis.size == Mesh::kRest ? axis.name
                                             : fmt::format("{} {}", axis.name, axis.size));
  }
  return fmt::format("{}", fmt::join(parts, " x "));
}

void fill_in_sizes(std::vector<Mesh::Axis>& axes, int ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("a mesh of {} does not fit {} rank{}: {}", text_of(axes), ranks,
                            ranks == 1 ? "" : "s", why));
  };
  std::int64_t product = 1;
  Mesh::Axis* rest = nullptr;
  std::set<std::string> names;
  for (Mesh::Axis& axis : axes) {
    if (!names.insert(axis.name).second) refuse(fmt::format("it has two axes '{}'", axis.name));
    if (axis.size == Mesh::kRest) {
      if (rest != nullptr) refuse("one axis at most can have the rest of the ranks (kRest)");
      rest = &axis;
      continue;
    }
    if (axis.size < 1 || axis.size > ranks) {
      refuse(fmt::format("the size of {} must be from 1 to {}", axis.name, ranks));
    }
    if (product <= ranks) product *= axis.size;  // else it fits nothing, and must not overflow
  }
  if (ranks % product != 0) refuse(fmt::format("{} is not a multiple of {}", ranks, product));
  if (rest != nullptr) {
    rest->size = static_cast<int>(ranks / product);
  } else if (product != ranks) {
    refuse(fmt::format("it has {} places", product));
  }
}

// The number of `ranks` on this rank's host, for `axis`.
int ranks_of_host(const Communicator& ranks, const std::string& axis) {
  int size = 0;
  int first = 0;  // of its host
  for (int r = 0; r < ranks.size(); ++r) {
    if (ranks.host_of(r) == ranks.host_of(ranks.rank())) ++size;
    if (r == 0 || ranks.host_of(r) == ranks.host_of(r - 1)) continue;
    for (int earlier = first; earlier >= 0; --earlier) {
      if (ranks.host_of(r) != ranks.host_of(earlier)) continue;
      throw Error(fmt::format(
          "ranks {} and {} are on one host, and rank {} between them is on another: start the "
          "ranks of a host with consecutive numbers, or give the size of {}",
          ranks.world_rank(earlier), ranks.world_rank(r), ranks.world_rank(r - 1), axis));
    }
    first = r;
  }
  return size;
}

bool splits_model(const std::string& axis) { return axis == "tensor" || axis == "pipeline"; }

bool is_of_training(const std::string& axis) { return axis == "data" || splits_model(axis); }

// A communicator that its owner keeps.
std::shared_ptr<Communicator> not_owned(Communicator& communicator) {
  return {std::shared_ptr<void>(), &communicator};
}

}  // namespace

Mesh::Mesh(Communicator& world)
    : world_(&world),
      axes_{{"data", world.size()}},
      groups_{{"data", not_owned(world)}},
      alone_(connect_alone()) {}

Mesh::Mesh(Communicator& world, std::vector<Axis> axes)
    : world_(&world), axes_(std::move(axes)), alone_(connect_alone()) {
  cut(world, axes_);
  if (!std::ranges::any_of(axes_, &is_of_training, &Axis::name)) groups_["data"] = not_owned(world);
}

Mesh Mesh::with_shards(std::int64_t shard_size) const {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // which fits no world either
  std::vector<Axis> parts = {{"replica", kRest},
                             {"shard", static_cast<int>(std::min(shard_size, kMost))}};
  Mesh mesh = *this;
  const auto whole = std::ranges::find(mesh.axes_, "data", &Axis::name);
  if (whole == mesh.axes_.end()) {
    throw Error(fmt::format("a mesh of {} has no axis 'data' to cut", text()));
  }
  mesh.cut(data(), parts);
  mesh.axes_.insert(mesh.axes_.erase(whole), parts.begin(), parts.end());
  return mesh;
}

// Adds the groups of `ranks` along `axes`, and fills in the sizes.
void Mesh::cut(Communicator& ranks, std::vector<Axis>& axes) {
  for (Axis& axis : axes) {
    if (axis.size == kRanksOfHost) axis.size = ranks_of_host(ranks, axis.name);
  }
  // First, because ranks with different meshes would wait in different groups.
  verify_same(ranks, "the mesh of ranks", text_of(axes));
  fill_in_sizes(axes, ranks.size());
  // Groups need names that no mesh before had; rank 0 numbers them.
  static std::atomic<int> made = 0;
  const std::string number = ranks.exchange(std::to_string(made++)).front();
  int stride = ranks.size();
  for (const Axis& axis : axes) {
    stride /= axis.size;
    std::shared_ptr<Communicator>& group = groups_[axis.name];
    if (axis.size == ranks.size()) {
      group = not_owned(ranks);
      continue;
    }
    const int mine = ranks.rank() / stride % axis.size;
    std::vector<int> members;
    for (int k = 0; k < axis.size; ++k) members.push_back(ranks.rank() + (k - mine) * stride);
    group = ranks.split(members, fmt::format("mesh {} {}", number, axis.name));
  }
}

Communicator& Mesh::group(std::string_view axis) const {
  const auto found = groups_.find(axis);
  return found == groups_.end() ? *alone_ : *found->second;
}

Communicator& Mesh::along(std::string_view axis) const {
  if (const auto found = groups_.find(axis); found != groups_.end()) return *found->second;
  std::vector<std::string> known;
  for (const Axis& a : axes_) known.push_back(a.name);
  throw Error(fmt::format("the mesh has no axis '{}', it has {}", axis, fmt::join(known, " and ")));
}

int Mesh::place(int rank, const AxisNames& axes) const {
  int place = 0;
  int stride = 1;
  for (const auto& [name, size] : axes_ | std::views::reverse) {
    const std::string_view known = splits_model(name) ? std::string_view(name) : "data";
    if (std::ranges::find(axes, known) != axes.end()) {
      place += rank % size * stride;
      stride *= size;
    }
    rank /= size;
  }
  return place;
}

void Mesh::verify_same_at(const AxisNames& axes, const std::string& what,
                          const std::function<std::string()>& text) const {
  verify_same(*world_, what, text, [&](int rank) { return place(rank, axes); });
}

bool Mesh::any(bool mine) const {
  const std::vector<double> all = all_gather_scalars(*world_, {mine ? 1.0 : 0.0});
  return std::ranges::any_of(all, [](double of_rank) { return of_rank != 0; });
}

std::string Mesh::text() const { return text_of(axes_); }

}  // namespace zero::dist
