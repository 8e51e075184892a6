#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <zero/base/error.hpp>

namespace zero::testing {

/// Notes, for parity_matrix, that the test that runs now has compared `mode` at `world_size` ranks
/// and found nothing: a file of no bytes in $ZERO_PARITY_CELLS, "zero1:naive@3@Parity.AdamW". Does
/// nothing where the variable is not set, or the test has failed.
inline void fill_cell(const std::string& mode, int world_size) {
  const char* folder = std::getenv("ZERO_PARITY_CELLS");
  if (folder == nullptr || ::testing::Test::HasFailure()) return;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string suite = test->test_suite_name(), name = test->name();
  suite = suite.substr(suite.find('/') + 1);  // "Ranks/Parity" and "AdamW/N3"
  name = name.substr(0, name.find('/'));
  std::filesystem::create_directories(folder);
  const std::string file = mode + "@" + std::to_string(world_size) + "@" + suite + "." + name;
  if (!std::ofstream(std::filesystem::path(folder) / file)) {
    throw Error("cannot write " + file + " in " + folder);
  }
}

}  // namespace zero::testing
