#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/validate_world_size.hpp>

namespace zero::dist {

void validate_world_size(int asked) {
  const auto environment = rank_environment();
  if (!environment || environment->world_size == asked) return;
  throw Error(
      fmt::format("--nproc {}: this process is rank {} of {} by the variables of a launcher ({}), "
                  "which alone says how many ranks there are: leave --nproc out, or unset them",
                  asked, environment->rank, environment->world_size, environment->launcher));
}

}  // namespace zero::dist
