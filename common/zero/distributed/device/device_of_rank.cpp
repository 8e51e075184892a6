#include <fmt/format.h>

#include <map>

#include <zero/base/error.hpp>
#include <zero/distributed/device/device_of_rank.hpp>

namespace zero::dist {

int device_of_rank(int local_rank, int visible) { return local_rank % visible; }

void verify_own_devices(const std::vector<std::string>& identities) {
  std::map<std::string, std::size_t> users;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [other, first] = users.emplace(identities[rank], rank);
    if (first) continue;
    throw Error(
        fmt::format("ranks {} and {} would both use {}: give each rank a GPU of its own (start "
                    "as many ranks on a machine as it has GPUs), or let ranks share one: NCCL 2.30 "
                    "with NCCL_MULTI_RANK_GPU_ENABLE=1",
                    other->second, rank, identities[rank]));
  }
}

}  // namespace zero::dist
