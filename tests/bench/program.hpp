#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>

/// What all benchmark programs share; see docs/benchmarks.md.
namespace zero::bench {

using Json = nlohmann::ordered_json;

/// What one benchmark measured.
struct Measured {
  /// Of each repetition; on several ranks, the slowest rank's. The median is the benchmark's time.
  std::vector<double> seconds;
  /// Whatever else there is to say, by name; numbers in the JSON.
  std::map<std::string, double> counters = {};
};

/// Thrown by a benchmark that cannot run on this machine. No failure of the program.
struct NotHere : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A program of benchmarks: its options, then its benchmarks, then run().
///
/// Google Benchmark chooses how often to repeat something by the time it takes, which differs
/// between ranks that must stay in step. So each benchmark is one iteration of Google's, repeats
/// by itself, and hands over a time of its own (the median). Google Benchmark names, selects and
/// writes: `--filter REGEX` and all its flags (`--benchmark_out=…`, `--benchmark_list_tests`)
/// work.
class Program {
 public:
  Program(int argc, char** argv, const std::string& description);

  /// For options of the program's own.
  CLI::App& options() { return options_; }

  /// Reads the command line. The exit code to end with, where it asked for help or is wrong.
  std::optional<int> parse();

  /// `name` is made of parts with slashes between them. What `measure` throws is printed.
  void add(const std::string& name, std::function<Measured()> measure);

  /// Runs what was selected, a line for each; the exit code: 1 if a benchmark failed.
  int run();

 private:
  int argc_;
  char** argv_;
  CLI::App options_;
  std::string filter_;
  bool failed_ = false;
};

/// Runs `function` on ranks forked for it, of one thread each unless `options` say otherwise; what
/// they returned, in rank order. zero::Error with what each said if any failed. The calling process
/// may not have used a tensor yet.
std::vector<Json> on_ranks(dist::LaunchOptions options,
                           const std::function<Json(dist::Communicator&)>& function);

/// Of ranks' lists `key`, one entry a repetition: each repetition's largest.
std::vector<double> slowest(const std::vector<Json>& ranks, const std::string& key);
/// Of ranks' numbers `key`.
double mean(const std::vector<Json>& ranks, const std::string& key);
double largest(const std::vector<Json>& ranks, const std::string& key);

/// The middle one; of an even number the upper of the two in the middle. Not for an empty list.
double median(std::vector<double> values);

}  // namespace zero::bench
