#include "program.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include <zero/base/error.hpp>

namespace zero::bench {
namespace {

// Program::add prints a line as soon as a benchmark has ended; Google's own table would be wider
// than a terminal.
class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void say(const std::string& name, const std::string& what) {
  fmt::print("{:<52} {}\n", name, what);
  std::fflush(stdout);
}

}  // namespace

Program::Program(int argc, char** argv, const std::string& description)
    : argc_(argc), argv_(argv), options_(description) {
  options_.allow_extras();
  options_.footer("Google Benchmark's flags (--benchmark_out=FILE, --benchmark_list_tests) work.");
  options_.add_option("--filter", filter_, "only benchmarks whose name matches this expression");
}

std::optional<int> Program::parse() {
  try {
    options_.parse(argc_, argv_);
  } catch (const CLI::ParseError& end) {
    return options_.exit(end);
  }
  std::vector<std::string> rest = options_.remaining();
  std::vector<char*> arguments = {argv_[0]};  // Google Benchmark keeps this pointer
  for (std::string& argument : rest) arguments.push_back(argument.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  if (filter_.empty()) filter_ = benchmark::GetBenchmarkFilter();
  return std::nullopt;
}

void Program::add(const std::string& name, std::function<Measured()> measure) {
  const auto run = [this, name, measure](benchmark::State& state) {
    try {
      const Measured measured = measure();
      const double time = median(measured.seconds);
      for (auto _ : state) state.SetIterationTime(time);
      state.counters["best_s"] =
          *std::min_element(measured.seconds.begin(), measured.seconds.end());
      state.counters["times_measured"] = static_cast<double>(measured.seconds.size());
      for (const auto& [key, value] : measured.counters) state.counters[key] = value;
      say(name, fmt::format("{:>11.3f} ms", 1e3 * time));
    } catch (const NotHere& reason) {
      say(name, fmt::format("not here: {}", reason.what()));
      state.SkipWithError(reason.what());
    } catch (const std::exception& error) {
      failed_ = true;
      say(name, fmt::format("FAILED: {}", message_of(error)));
      state.SkipWithError(message_of(error).c_str());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

int Program::run() {
  Silent silent;
  benchmark::RunSpecifiedBenchmarks(&silent, nullptr, filter_);
  benchmark::Shutdown();
  return failed_ ? 1 : 0;
}

std::vector<Json> on_ranks(dist::LaunchOptions options,
                           const std::function<Json(dist::Communicator&)>& function) {
  if (options.threads == 0) options.threads = 1;
  options.capture_output = true;
  const auto exits =
      dist::launch_ranks(options, [&](dist::Communicator& c) { return function(c).dump(); });
  dist::check_all_well(exits);
  std::vector<Json> ranks;
  for (const dist::RankExit& exit : exits) ranks.push_back(Json::parse(exit.result));
  return ranks;
}

std::vector<double> slowest(const std::vector<Json>& ranks, const std::string& key) {
  auto all = ranks.at(0).at(key).get<std::vector<double>>();
  for (const Json& rank : ranks) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = std::max(all[i], rank.at(key).at(i).get<double>());
    }
  }
  return all;
}

double mean(const std::vector<Json>& ranks, const std::string& key) {
  double sum = 0;
  for (const Json& rank : ranks) sum += rank.at(key).get<double>();
  return sum / static_cast<double>(ranks.size());
}

double largest(const std::vector<Json>& ranks, const std::string& key) {
  double most = 0;
  for (const Json& rank : ranks) most = std::max(most, rank.at(key).get<double>());
  return most;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace zero::bench
