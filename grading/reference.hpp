#pragma once

#include <string>

#include <zero/distributed/communicator.hpp>

/// The repository's 00_simple_ddp/minimal.cpp and 06_hsdp/minimal.cpp, compiled into the grader.
namespace zero::exercise {

std::string train_ddp(dist::Communicator& communicator);

/// The same with the sum of the gradients in place of their average.
std::string train_ddp_with_sums(dist::Communicator& communicator);
/// The same with the sum that has the last rank's gradient alone.
std::string train_ddp_with_last(dist::Communicator& communicator);

/// Chapter 06's, with the bits of a DDP that adds inside groups first; and with sums.
std::string train_hsdp(dist::Communicator& communicator);
std::string train_hsdp_with_sums(dist::Communicator& communicator);

}  // namespace zero::exercise
