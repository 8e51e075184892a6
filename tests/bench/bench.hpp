#pragma once

#include <ATen/core/Tensor.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>

/// What the benchmark programs share; see docs/benchmarks.md.
///
/// Google Benchmark chooses how often to repeat something by the time it takes, which differs
/// between ranks that must stay in step. So each benchmark is one iteration of Google's, repeats by
/// itself, and hands over a time of its own.
namespace zero::bench {

using Json = nlohmann::ordered_json;

/// What one benchmark measured.
struct Measured {
  /// Of each repetition; on several ranks the slowest rank's. Empty where it cannot run on this
  /// machine, which is no failure.
  std::vector<double> seconds;
  std::map<std::string, double> counters = {};
};

/// Registers a benchmark, whose time is the median of `seconds`. What `measure` throws is its
/// error.
void add(const std::string& name, std::function<Measured()> measure);

/// The main program: reads `options` and Google Benchmark's flags, lets `add_all` register
/// benchmarks, and runs those that --benchmark_filter selects. The exit code: 1 if one failed.
int run(int argc, char** argv, CLI::App& options, const std::function<void()>& add_all);

/// An option of `options` that is a number from `least` to `most`, or several.
template <typename T>
void number(CLI::App& options, const char* name, T& out, const char* what, double least,
            double most) {
  options.add_option(name, out, what)->capture_default_str()->check(CLI::Range(least, most));
}

/// `millions` tensors of a million elements with gradients, and copies of tensors with the same.
std::vector<at::Tensor> random_parameters(std::int64_t millions);
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& parameters);

/// `work`, after a first time that is not counted, and in turn with it `copy`, each of which moves
/// `bytes`: both rates, and how near the work comes.
Measured beside_copy(int repetitions, double bytes, const std::function<void()>& work,
                     const std::function<void()>& copy);

/// Runs `function` on ranks forked for it, of one thread each; what they returned, in rank order.
/// zero::Error with what each said if any failed.
std::vector<Json> on_ranks(dist::LaunchOptions options,
                           const std::function<Json(dist::Communicator&)>& function);

/// Of ranks' lists `key`, one entry a repetition: each repetition's largest.
std::vector<double> slowest(const std::vector<Json>& ranks, const std::string& key);

/// How long `work` takes.
double seconds_of(const std::function<void()>& work);

/// The middle one; of an even number the upper of the two in the middle. Not for an empty list.
double median(std::vector<double> values);

}  // namespace zero::bench
