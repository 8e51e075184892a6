#include <fmt/format.h>

#include <zero/distributed/nccl/nccl_version.hpp>

namespace zero::dist {

std::string nccl_version_problem(int header, std::uint64_t torch) {
  const std::string compiled = fmt::format("{}.{}", header / 10000, header / 100 % 100);
  const std::string of_torch = fmt::format("{}.{}", torch >> 32, torch >> 16 & 0xFFFF);
  if (compiled == of_torch) return "";
  return fmt::format(
      "this program was compiled with the header of NCCL {}, and LibTorch with that of NCCL {}: "
      "build it again with the nccl.h of LibTorch's own package (nvidia-nccl), and see that CMake "
      "names that folder in 'CUDA and NCCL: …'",
      compiled, of_torch);
}

}  // namespace zero::dist
