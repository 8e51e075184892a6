#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>

#include "device.hpp"

namespace zero::ladder {

void use_device(const Options& options, char** argv) {
  if (options.device == "cpu") {
    memory::install();
    return;
  }
  const std::filesystem::path other =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("ladder_cuda");
  std::error_code ignored;
  if (!std::filesystem::exists(other, ignored)) {
    throw Error(fmt::format(
        "--device cuda: {} is not there; it is built, by ./run ladder --device cuda, where "
        "LibTorch "
        "has CUDA and the headers of CUDA and NCCL are installed. --device cpu needs nothing",
        other.string()));
  }
  ::execv(other.c_str(), argv);
  throw Error(
      fmt::format("--device cuda: {} cannot be started: {}", other.string(), std::strerror(errno)));
}

std::int64_t free_gpu_bytes(const Options&) { return 0; }

at::Device enter_rank(const Options&) { return at::kCPU; }

}  // namespace zero::ladder
