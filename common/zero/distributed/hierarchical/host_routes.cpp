#include <fmt/format.h>

#include <set>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/hierarchical/host_routes.hpp>
#include <zero/distributed/reduction.hpp>

namespace zero::dist {
namespace {

// Below so many bytes from a host, sent directly, a message more costs longer than the bytes.
constexpr std::int64_t kLeastBytes = 16 << 10;

}  // namespace

at::ScalarType type_of_sums(at::ScalarType dtype) {
  return at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

std::string HostRoutes::choice(const std::string& between_hosts) {
  const std::string word = base::variable("ZERO_BETWEEN_HOSTS").value_or(between_hosts);
  if (word == "auto" || word == "direct" || word == "hierarchical") return word;
  throw Error(fmt::format("between_hosts '{}' is unknown: auto, direct or hierarchical", word));
}

std::optional<HostRoutes> HostRoutes::of(const std::vector<int>& hosts, const std::string& choice) {
  const std::size_t ranks = hosts.size(), different = std::set(hosts.begin(), hosts.end()).size();
  if (different < 2 || different == ranks || ranks % different != 0) return std::nullopt;
  const std::size_t same = ranks / different;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (hosts[r] != hosts[r / same * same]) return std::nullopt;
  }
  return HostRoutes(static_cast<int>(different), static_cast<int>(same), choice);
}

std::vector<HostRoutes::Range> HostRoutes::lane(const Call& call, std::int64_t elements,
                                                int place) const {
  const auto range = [&](int part, int parts, int owner) {
    const std::int64_t begin = piece_begin(elements, part, parts);
    return Range{begin, piece_begin(elements, part + 1, parts) - begin, owner};
  };
  if (call.operation == Operation::kReduce) return {range(place, per_host_, call.root)};
  std::vector<Range> ranges;
  for (int host = 0; host < hosts_; ++host) {
    const int owner = rank_at(host, place);
    ranges.push_back(
        range(owner, hosts_ * per_host_, call.operation == Operation::kAllReduce ? -1 : owner));
  }
  return ranges;
}

std::optional<std::pair<std::int64_t, std::int64_t>> HostRoutes::bytes_of_a_host(
    Operation operation, const at::Tensor& tensor) const {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  const std::int64_t sums =
      tensor.numel() *
      static_cast<std::int64_t>(c10::elementSize(type_of_sums(tensor.scalar_type())));
  switch (operation) {
    case Operation::kAllGather:
      return {{per_host_ * (hosts_ - 1) * per_host_ * bytes, per_host_ * (hosts_ - 1) * bytes}};
    case Operation::kBroadcast:
      return {{per_host_ * (hosts_ - 1) * bytes, (hosts_ - 1) * bytes}};
    case Operation::kReduce:
      return {{per_host_ * bytes, sums}};
    case Operation::kReduceScatter:
      return {{per_host_ * bytes / hosts_ * (hosts_ - 1), sums}};
    case Operation::kAllReduce:
      return {{2 * (per_host_ * bytes / hosts_ * (hosts_ - 1)), hosts_ == 2 ? sums : sums + bytes}};
    default:
      return std::nullopt;
  }
}

bool HostRoutes::take(const Call& call, const at::Tensor& tensor) const {
  if (choice_ == "direct") return false;
  // Integers cannot be averaged, which the direct way says.
  if (adds_up(call.operation) && call.divisor != 1 && !tensor.is_floating_point()) return false;
  const auto bytes = bytes_of_a_host(call.operation, tensor);
  if (!bytes || choice_ == "hierarchical") return bytes.has_value();
  const auto [directly, this_way] = *bytes;
  return directly >= kLeastBytes && this_way < directly;
}

std::optional<std::int64_t> HostRoutes::sent_between_hosts(const Call& call,
                                                           const at::Tensor& tensor,
                                                           int rank) const {
  if (!take(call, tensor)) return std::nullopt;
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (call.operation == Operation::kAllGather) return (hosts_ - 1) * bytes;
  if (call.operation == Operation::kBroadcast) return rank == call.root ? (hosts_ - 1) * bytes : 0;
  const bool last = host_of(rank) == hosts_ - 1;
  std::int64_t sums = 0, results = 0;  // elements
  for (const Range& range : lane(call, tensor.numel(), place_of(rank))) {
    if (!last) sums += range.length;
    const bool returns =
        range.owner < 0 ? host_of(rank) > 0 : last && host_of(range.owner) != host_of(rank);
    if (returns) results += range.length;
  }
  return sums * static_cast<std::int64_t>(c10::elementSize(type_of_sums(tensor.scalar_type()))) +
         results * static_cast<std::int64_t>(tensor.element_size());
}

}  // namespace zero::dist
