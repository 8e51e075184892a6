#pragma once

#include <string>

#include <zero/base/json.hpp>

#include "planner.hpp"

/// A plan for readers and for programs.
namespace zero::plan {

/// For a terminal of 100 columns.
std::string to_text(const Plan& plan);
/// The same in bytes and seconds, and the points of the curve of memory against communication at
/// several world sizes, which plot_plan.py draws.
base::Json to_json(const Plan& plan);

/// Which stage to take for models, ranks, memories, links and batches of several sizes, as a table;
/// of the next best, how much more or less than that it has. The rest is that of `request`.
std::string scenarios(Request request);

}  // namespace zero::plan
