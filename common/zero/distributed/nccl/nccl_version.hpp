#pragma once

// Private to the library zero::cuda.

#include <cstdint>
#include <string>

namespace zero::dist {

/// Why a program that was compiled with NCCL's header of version `header` (its NCCL_VERSION_CODE)
/// cannot use a LibTorch that was built with `torch` (torch::cuda::nccl::version(): major, minor
/// and patch in 16 bits each); empty if it can. They exchange structures of that header.
std::string nccl_version_problem(int header, std::uint64_t torch);

}  // namespace zero::dist
