#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace zero::ladder {

/// Shows how far a loop of a known number of steps has come.
///
/// On a terminal it is one line, redrawn in place:
///   zero2  5/12  loss 10.713  step 6.02 s  left 00:00:42
/// Into a file or a pipe it is a line at every tenth of what this run has to do, at most one a
/// step:
///   zero2  5/12  loss 10.713  step 6.02 s
///
/// Local to this process, never throws on a failed write, not for use by several threads at once.
class Progress {
 public:
  /// `steps` in all, of which an earlier run has done `done`. Without a label nothing is shown.
  /// Writes to `out`, which is not owned, as to a terminal or not.
  Progress(std::string label, std::int64_t done, std::int64_t steps, std::FILE* out,
           bool to_terminal);

  /// Ends the line, so that whatever is printed next, an error for example, has a line of its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more step is done; `text` is shown behind the count.
  void step(const std::string& text);

 private:
  std::string label_;
  std::int64_t first_;
  std::int64_t done_;
  std::int64_t steps_;
  std::FILE* out_;
  bool to_terminal_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace zero::ladder
