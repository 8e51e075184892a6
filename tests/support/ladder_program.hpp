#pragma once

#include <string>

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

/// A quick run: the tiny model, two ranks, two short steps, nothing measured alone.
inline const std::string kQuick =
    "--model tiny --steps 2 --seq-len 16 --no-compute-alone --timeout 30 ";

}  // namespace zero::testing
