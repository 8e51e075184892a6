#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <zero/train/strategy.hpp>

namespace zero::step {

/// Prints `title`, and below it the `line` of every rank in rank order; rank 0 does the printing.
/// Called by all ranks.
void print_by_rank(dist::Communicator& communicator, const std::string& title,
                   const std::string& line);

/// What this rank holds of a small model now, in one line: "parameters aaaa bb   gradients .... ..
/// moments aa.. bb". A letter stands for `a_letter` elements of one parameter (the last for what is
/// left), the first parameter's is a; it is a dot if this rank holds none of them. Whole tensors
/// are what counts if they are there, else what its placement says.
std::string holdings(train::Strategy& strategy, std::int64_t a_letter = 1);

/// Prints a legend, trains two steps of `pass`, the loss of this rank's batch, and prints after
/// every phase the holdings() of all ranks. For models small enough to be printed. Called by all
/// ranks.
void narrate(train::Strategy& strategy, const std::function<at::Tensor()>& pass,
             std::int64_t a_letter = 1);

}  // namespace zero::step
