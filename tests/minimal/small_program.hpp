#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace zero::testing {

/// One line of a small program's table.
struct SmallRow {
  int rank = 0;
  int step = 0;
  std::string loss;
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t peak = 0;
  std::int64_t sent = 0;  ///< in chapter 06 inside the group, in chapter 08 on the data axis
  /// In chapter 06, hpz.cpp and qgz.cpp the bytes sent between groups, in chapter 08 on the tensor
  /// axis; in sequence.cpp and partitioned.cpp then the bytes of activations that are kept from
  /// forward to backward, and at the peak. In chapter 09 the micro-batches in flight, and the bytes
  /// of activations at the peak. In chapter 10 the bytes of the file, and those read and written in
  /// a step. Others have no more columns.
  std::vector<std::int64_t> more;
};

/// What a small program prints.
struct SmallOutput {
  std::vector<SmallRow> rows;
  std::vector<std::string> digests;  ///< one for each rank
};

/// What a shell command prints to stdout; fails the test if its exit code is not `code`.
inline std::string output_of(const std::string& command, int code = 0) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int letter = std::fgetc(pipe); letter != EOF; letter = std::fgetc(pipe)) {
    text += static_cast<char>(letter);
  }
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << command << ": " << status;
  return text;
}

/// What the small program of `chapter` ("00_simple_ddp") prints on `ranks` ranks. `program`: the
/// name of its file; `words`: its other arguments.
inline std::string printed_by_small_program(const std::string& chapter, int ranks,
                                            const std::string& program = "minimal",
                                            const std::string& words = "") {
  static std::map<std::string, std::string> printed;  // many tests compare with the same run
  const std::string command =
      fmt::format("'{}/{}_{}' {} {}", ZERO_MINIMAL_FOLDER, chapter, program, ranks, words);
  if (printed.count(command) == 0) printed[command] = output_of(command);
  return printed[command];
}

/// The same, read.
inline SmallOutput run_small_program(const std::string& chapter, int ranks,
                                     const std::string& words = "",
                                     const std::string& program = "minimal") {
  SmallOutput output;
  std::istringstream lines(printed_by_small_program(chapter, ranks, program, words));
  std::string line;
  std::getline(lines, line);  // the head of the table
  while (std::getline(lines, line)) {
    if (line.find("digest") != std::string::npos) {
      output.digests.push_back(line.substr(line.size() - 16));
      continue;
    }
    SmallRow row;
    std::istringstream columns(line);
    columns >> row.rank >> row.step >> row.loss >> row.parameters >> row.gradients >>
        row.optimizer >> row.peak >> row.sent;
    for (std::int64_t number = 0; columns >> number;) row.more.push_back(number);
    output.rows.push_back(row);
  }
  return output;
}

}  // namespace zero::testing
