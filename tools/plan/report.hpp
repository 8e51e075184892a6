#pragma once

#include <string>

#include "planner.hpp"

namespace zero::plan {

/// A plan for readers: tables and sentences for a terminal of 100 columns.
std::string to_text(const Plan& plan);

}  // namespace zero::plan
