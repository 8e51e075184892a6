#pragma once

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "test_folder.hpp"

/// Helpers of the tests that run the ladder program; nothing else includes this.
namespace zero::testing {

/// How the program ended.
struct ProcessResult {
  int code = -1;     ///< exit code; above 127 where a signal ended it
  std::string said;  ///< all that it printed, errors among it
};

/// Runs the ladder program (or `program`, one like it) with `arguments` (words for the shell) in
/// the folder of the project, without a picture. Figures go to out.json in `folder` unless
/// `arguments` say otherwise. Blocks until it has ended.
inline ProcessResult run_ladder(const TestFolder& folder, std::string arguments,
                                const std::string& program = ZERO_LADDER_PROGRAM) {
  if (arguments.find("--json") == std::string::npos) {
    arguments += " --json '" + (folder / "out.json").string() + "'";
  }
  const TestFolder elsewhere;
  const std::string log = (elsewhere / "log").string();
  const std::string command = "ZERO_PYTHON=false OMP_NUM_THREADS=1 '" + program + "' " + arguments +
                              " > '" + log + "' 2>&1";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_bytes(log)};
}

/// A quick run: the tiny model, two ranks, two short steps, nothing measured alone.
inline const std::string kQuick =
    "--model tiny --steps 2 --seq-len 16 --no-compute-alone --timeout 30 ";

}  // namespace zero::testing
