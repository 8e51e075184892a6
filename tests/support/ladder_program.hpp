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
    arguments += " --json" + shell_word(folder / "out.json");
  }
  return run_command("OMP_NUM_THREADS=1 '" + program + "' " + arguments);
}

/// The output and the figures of a run that succeeded.
struct LadderRun {
  std::string said;
  nlohmann::json figures;
};

/// The same for a run that must succeed.
inline LadderRun succeed(const TestFolder& folder, const std::string& arguments,
                         const std::string& program = ZERO_LADDER_PROGRAM) {
  const ProcessResult ended = run_ladder(folder, arguments, program);
  EXPECT_EQ(ended.code, 0) << ended.said;
  if (ended.code != 0) return {ended.said, {}};
  return {ended.said, nlohmann::json::parse(read_bytes(folder / "out.json"))};
}

inline nlohmann::json figures_of(const TestFolder& folder, const std::string& arguments,
                                 const std::string& program = ZERO_LADDER_PROGRAM) {
  return succeed(folder, arguments, program).figures;
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
