#pragma once

#include <string>

#include <zero/base/json.hpp>

#include "planner.hpp"

/// A plan for readers.
namespace zero::plan {

/// For a terminal of 100 columns.
std::string to_text(const Plan& plan);

/// The tables, in bytes and seconds, and what tools/plots/plot_plan.py draws.
base::Json to_json(const Plan& plan);

/// Which stage to take for models, ranks, memories, links and batches of several sizes, as a table;
/// of the next best, how much more or less than that it has. The rest is that of `request`.
std::string scenarios(Request request);

}  // namespace zero::plan
