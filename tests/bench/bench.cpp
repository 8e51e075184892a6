#include "bench.hpp"

#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

namespace zero::bench {
namespace {

bool failed = false;

}  // namespace

void add(const std::string& name, std::function<Measured()> measure) {
  const auto run = [measure = std::move(measure)](benchmark::State& state) {
    try {
      const Measured measured = measure();
      if (measured.seconds.empty()) return state.SkipWithError("not on this machine");
      for (auto _ : state) state.SetIterationTime(median(measured.seconds));
      for (const auto& [key, value] : measured.counters) state.counters[key] = value;
    } catch (const std::exception& error) {
      failed = true;
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

int run(int argc, char** argv, CLI::App& options, const std::function<void()>& add_all) {
  options.allow_extras();
  options.footer("Google Benchmark's flags (--benchmark_filter=REGEX, --benchmark_out=FILE) work.");
  try {
    options.parse(argc, argv);
  } catch (const CLI::ParseError& end) {
    return options.exit(end);
  }
  std::vector<std::string> rest = options.remaining();
  std::vector<char*> words = {argv[0]};  // Google Benchmark keeps this pointer
  for (std::string& word : rest) words.push_back(word.data());
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  benchmark::Initialize(&count, words.data());
  if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 2;
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  return failed ? 1 : 0;
}

std::vector<at::Tensor> random_parameters(std::int64_t millions) {
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < millions; ++i) {
    all.push_back(at::randn({1'000'000}));
    all.back().mutable_grad() = at::randn({1'000'000});
  }
  return all;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : parameters) {
    all.push_back(parameter.clone());
    all.back().mutable_grad() = parameter.grad();
  }
  return all;
}

Measured beside_copy(int repetitions, double bytes, const std::function<void()>& work,
                     const std::function<void()>& copy) {
  std::vector<double> seconds, copies;
  work();
  for (int i = 0; i < repetitions; ++i) {
    seconds.push_back(seconds_of(work));
    copies.push_back(seconds_of(copy));
  }
  const double time = median(seconds), copy_time = median(copies);
  return {std::move(seconds),
          {{"gb_per_s", bytes / time / 1e9},
           {"copy_gb_per_s", bytes / copy_time / 1e9},
           {"of_copy", copy_time / time}}};
}

std::vector<Json> on_ranks(dist::LaunchOptions options,
                           const std::function<Json(dist::Communicator&)>& function) {
  options.threads = 1;
  options.capture_output = true;
  options.connect.timeout = std::chrono::minutes(2);
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

double seconds_of(const std::function<void()>& work) {
  const auto started = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace zero::bench
