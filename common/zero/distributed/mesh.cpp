#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {

Mesh::Mesh(Communicator& world, std::vector<Axis> axes) : world_(world), axes_(std::move(axes)) {
  for (Axis& axis : axes_) {
    if (axis.size != kRanksOfHost) continue;
    axis.size = 0;
    for (int r = 0; r < world.size(); ++r) {
      axis.size += world.host_of(r) == world.host_of(world.rank()) ? 1 : 0;
    }
    check_hosts();
  }
  // First, because ranks with different meshes would wait in different groups.
  world.verify_same_on_all_ranks("the mesh of ranks", text());
  fill_in_sizes();
  // Groups need names that no mesh before had; rank 0 numbers them.
  static std::atomic<int> made = 0;
  const std::string number = world.exchange(std::to_string(made++)).front();
  int stride = world.size();
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    groups_.emplace_back();
    if (axis.size == world.size()) continue;
    const int mine = world.rank() / stride % axis.size;
    std::vector<int> ranks;
    for (int k = 0; k < axis.size; ++k) ranks.push_back(world.rank() + (k - mine) * stride);
    groups_.back() = world.split(ranks, fmt::format("mesh {} {}", number, axis.name));
  }
}

void Mesh::fill_in_sizes() {
  const int ranks = world_.size();
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("a mesh of {} does not fit {} rank{}: {}", text(), ranks,
                            ranks == 1 ? "" : "s", why));
  };
  std::int64_t product = 1;
  Axis* rest = nullptr;
  for (Axis& axis : axes_) {
    if (axis.size == kRest && rest == nullptr) {
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

void Mesh::check_hosts() const {
  int first = 0;  // of its host
  for (int r = 1; r < world_.size(); ++r) {
    if (world_.host_of(r) == world_.host_of(r - 1)) continue;
    for (int earlier = first; earlier >= 0; --earlier) {
      if (world_.host_of(r) != world_.host_of(earlier)) continue;
      throw Error(fmt::format(
          "ranks {} and {} are on one host, and rank {} between them is on another: start the "
          "ranks of a host with consecutive numbers, or give the size of {}",
          earlier, r, r - 1, axes_.back().name));
    }
    first = r;
  }
}

Communicator& Mesh::along(std::string_view name) const {
  std::vector<std::string> known;
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    if (axes_[a].name == name) return groups_[a] != nullptr ? *groups_[a] : world_;
    known.push_back(axes_[a].name);
  }
  throw Error(fmt::format("the mesh has no axis '{}', it has {}", name, fmt::join(known, " and ")));
}

void Mesh::average(const at::Tensor& tensor, Purpose purpose, ReduceType type) const {
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  at::Tensor sum = tensor;
  if (half && type == ReduceType::kFloat32) {
    const memory::Charge charge(memory::Category::kCommunication);
    sum = tensor.detach().to(at::kFloat);
  }
  int added = 1;  // ranks whose values are in the sum
  for (std::size_t a = axes_.size(); a-- > 0;) {
    if (axes_[a].size == 1) continue;
    Communicator& group = along(axes_[a].name);
    const bool first = added == 1;
    added *= axes_[a].size;
    if (added < world_.size()) {
      group.all_reduce(sum, purpose, {ReduceOp::kSum, type}).wait();
      continue;
    }
    const Reduction last = first ? Reduction(ReduceOp::kAverage, type)
                                 : Reduction::average_of_sums(world_.size(), type);
    group.all_reduce(tensor, sum, purpose, last).wait();
  }
}

std::int64_t Mesh::average_bytes(std::int64_t elements, std::int64_t element_size) const {
  std::int64_t bytes = 0;
  for (const Axis& axis : axes_) {
    const Communicator& group = along(axis.name);
    bytes += Communicator::all_reduce_bytes(elements, element_size, group.rank(), group.size());
  }
  return bytes;
}

std::string Mesh::text() const {
  std::vector<std::string> parts;
  for (const Axis& axis : axes_) {
    parts.push_back(axis.size == kRest ? axis.name : fmt::format("{} {}", axis.name, axis.size));
  }
  return fmt::format("{}", fmt::join(parts, " x "));
}

std::vector<Mesh::Axis> data_axes(std::int64_t shard_size) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // which fits no world either
  return {{"replica", Mesh::kRest}, {"shard", static_cast<int>(std::min(shard_size, kMost))}};
}

}  // namespace zero::dist
