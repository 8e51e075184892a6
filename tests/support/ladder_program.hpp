#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <zero/base/error.hpp>

#include "program.hpp"
#include "test_folder.hpp"

/// Helpers of the tests that run the ladder program; nothing else includes this.
namespace zero::testing {

/// Runs the ladder program (or `program`, one like it) with `arguments` (words for the shell) in
/// the folder of the project. Figures go to out.json in `folder` unless `arguments` say otherwise.
/// Blocks until it has ended.
inline ProcessResult run_ladder(const TestFolder& folder, std::string arguments,
                                const std::string& program = ZERO_LADDER_PROGRAM) {
  if (arguments.find("--json") == std::string::npos) {
    arguments += " --json '" + (folder / "out.json").string() + "'";
  }
  return run_command("OMP_NUM_THREADS=1 '" + program + "' " + arguments);
}

/// The same for a run that must succeed: its figures.
inline nlohmann::json figures_of(const TestFolder& folder, const std::string& arguments,
                                 const std::string& program = ZERO_LADDER_PROGRAM) {
  const ProcessResult ended = run_ladder(folder, arguments, program);
  EXPECT_EQ(ended.code, 0) << ended.said;
  if (ended.code != 0) return {};
  return nlohmann::json::parse(read_bytes(folder / "out.json"));
}

/// The row of `mode` in the figures.
inline const nlohmann::json& row_of(const nlohmann::json& figures, const std::string& mode) {
  for (const nlohmann::json& row : figures.at("modes")) {
    if (row.at("mode") == mode) return row;
  }
  throw Error("no mode " + mode);
}

/// A quick run: the tiny model, two ranks, two short steps, nothing measured alone.
inline const std::string kQuick =
    "--model tiny --steps 2 --seq-len 16 --no-compute-alone --timeout 30 ";

}  // namespace zero::testing
