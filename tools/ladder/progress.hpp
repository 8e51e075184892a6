#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zero::ladder {

struct ProgressOptions {
  /// Where to write; not owned.
  std::FILE* out = stderr;
  /// Draw a bar that is redrawn in place, or write plain lines. By default a bar if `out` is a
  /// terminal.
  std::optional<bool> bar = std::nullopt;
  /// Write nothing at all, for every rank but one.
  bool silent = false;
  /// Steps that an earlier run has done; the count goes on from there.
  std::int64_t done_before = 0;
};

/// Shows how far a loop of a known number of steps has come.
///
/// On a terminal it is one line, redrawn in place:
///   zero2  [##########..............]  5/12  loss 10.713  step 6.02 s  left 0:42
/// Into a file or a pipe it is a plain line at every tenth of what this run has to do, at most one
/// a step:
///   zero2  5/12  loss 10.713  step 6.02 s
///
/// Local to this process, never throws on a failed write, not for use by several threads at once.
class Progress {
 public:
  /// Names and texts shown behind the count, as in {{"loss", "10.713"}, {"step", "6.02 s"}}.
  using Fields = std::vector<std::pair<std::string, std::string>>;

  /// `steps` in all, with those that are done already. Where none is left, nothing is shown.
  Progress(std::string label, std::int64_t steps, ProgressOptions options = {});

  /// Ends the line, so that whatever is printed next, an error for example, has a line of its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more step is done.
  void step(const Fields& fields = {});

  /// Ends the line. step() must not follow.
  void finish();

 private:
  void draw_bar(const std::string& counts_and_fields);
  std::string time_left() const;

  std::string label_;
  std::int64_t steps_;
  ProgressOptions options_;
  bool bar_;
  bool line_open_ = false;
  std::int64_t done_;
  std::int64_t tenths_shown_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_ = {};
};

}  // namespace zero::ladder
